#include "cli/run_events.h"

#include <algorithm>
#include <string_view>

namespace flotilla {

Result<std::vector<EventRecord>> RunEvents::poll() {
  const std::string prefix = layout_.prefix + "/events/";
  FLOTILLA_ASSIGN_OR_RETURN(const std::vector<ObjectInfo> objects, list_all(store_, prefix));
  std::vector<EventRecord> records;
  for (const ObjectInfo& object : objects) {
    const std::string writer = object.key.substr(prefix.size(), object.key.rfind('/') - prefix.size());
    std::string& last = last_key_[writer];
    if (object.key <= last) continue;
    last = object.key;
    FLOTILLA_ASSIGN_OR_RETURN(const Object content, store_.get(object.key));
    auto segment = parse_event_segment(as_text(content.bytes));
    if (!segment.ok()) return std::move(segment).status().with_context(object.key);
    std::move(segment->records.begin(), segment->records.end(), std::back_inserter(records));
  }
  std::stable_sort(records.begin(), records.end(),
                   [](const EventRecord& a, const EventRecord& b) { return a.time < b.time; });
  return records;
}

}  // namespace flotilla
