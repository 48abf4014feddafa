#include "telemetry/event_sinks.h"

#include <algorithm>
#include <iterator>

namespace flotilla {

void FanOutSink::emit(Event event) {
  for (EventSink* sink : sinks_) sink->emit(event);
}

void MemorySink::emit(Event event) {
  {
    const std::lock_guard lock(mutex_);
    events_.push_back(std::move(event));
  }
  added_.notify_all();
}

std::vector<Event> MemorySink::events() const {
  const std::lock_guard lock(mutex_);
  return events_;
}

std::vector<Event> MemorySink::events(std::string_view kind) const {
  const std::lock_guard lock(mutex_);
  std::vector<Event> found;
  std::copy_if(events_.begin(), events_.end(), std::back_inserter(found),
               [&](const Event& e) { return e.kind == kind; });
  return found;
}

bool MemorySink::wait_for(std::string_view kind, std::size_t count, std::chrono::milliseconds timeout) const {
  std::unique_lock lock(mutex_);
  return added_.wait_for(lock, timeout, [&] {
    const auto found = std::count_if(events_.begin(), events_.end(), [&](const Event& e) { return e.kind == kind; });
    return static_cast<std::size_t>(found) >= count;
  });
}

}  // namespace flotilla
