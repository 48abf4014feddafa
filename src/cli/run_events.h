#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/status.h"
#include "store/object_store.h"
#include "sync/hub_layout.h"
#include "telemetry/event_record.h"

namespace flotilla {

// The event log segments of all writers of a run, as they arrive at the hub. One thread.
class RunEvents {
 public:
  RunEvents(ObjectStore& store, HubLayout layout) : store_(store), layout_(std::move(layout)) {}

  // Events of the segments that came since the last call, by time; those that name another writer than their key are
  // left out. A segment that cannot be fetched is tried again by the next call, one that is corrupt is passed over.
  Result<std::vector<EventRecord>> poll();
  // What went wrong with single segments since the last call.
  std::vector<std::string> take_problems();

 private:
  ObjectStore& store_;
  HubLayout layout_;
  std::map<std::string, std::string> last_key_;  // by writer
  std::vector<std::string> problems_;
};

}  // namespace flotilla
