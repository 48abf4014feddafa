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

  // Events of the segments that came since the last call, by time. data_loss names a segment that cannot be read; the
  // others are returned by the next call.
  Result<std::vector<EventRecord>> poll();

 private:
  ObjectStore& store_;
  HubLayout layout_;
  std::map<std::string, std::string> last_key_;  // by writer
};

}  // namespace flotilla
