#include "cli/run_events.h"

#include <algorithm>
#include <utility>

namespace flotilla {

Result<std::vector<EventRecord>> RunEvents::poll() {
  const std::string prefix = layout_.prefix + "/events/";
  FLOTILLA_ASSIGN_OR_RETURN(const std::vector<ObjectInfo> objects, list_all(store_, prefix));
  std::vector<EventRecord> records;
  std::string stopped;  // writer whose segment cannot be had now: its later ones wait, so that its events stay in order
  for (const ObjectInfo& object : objects) {
    const std::string writer = object.key.substr(prefix.size(), object.key.rfind('/') - prefix.size());
    std::string& last = last_key_[writer];
    if (object.key <= last || writer == stopped) continue;
    const auto content = store_.get(object.key);
    if (!content.ok()) {
      stopped = writer;
      problems_.push_back(content.status().with_context(object.key).message());
      continue;
    }
    last = object.key;
    auto segment = parse_event_segment(as_text(content->bytes));
    if (!segment.ok()) {
      problems_.push_back(segment.status().with_context(object.key).message());
      continue;
    }
    for (EventRecord& record : segment->records) {
      // A segment speaks for its writer only: nobody tells the learner's story but the learner.
      if (record.writer == writer) records.push_back(std::move(record));
    }
  }
  std::stable_sort(records.begin(), records.end(),
                   [](const EventRecord& a, const EventRecord& b) { return a.time < b.time; });
  return records;
}

std::vector<std::string> RunEvents::take_problems() { return std::exchange(problems_, {}); }

}  // namespace flotilla
