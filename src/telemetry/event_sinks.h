#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string_view>
#include <vector>

#include "telemetry/event_sink.h"

namespace flotilla {

// Hands every event to each of the sinks, in their order. The sinks must outlive it. Thread safe as they are.
class FanOutSink final : public EventSink {
 public:
  explicit FanOutSink(std::vector<EventSink*> sinks) : sinks_(std::move(sinks)) {}
  void emit(Event event) override;

 private:
  std::vector<EventSink*> sinks_;
};

// Keeps all events, for tests. Thread safe.
class MemorySink final : public EventSink {
 public:
  void emit(Event event) override;
  std::vector<Event> events() const;
  std::vector<Event> events(std::string_view kind) const;
  // Returns when there are `count` events of the kind; false after the timeout.
  bool wait_for(std::string_view kind, std::size_t count, std::chrono::milliseconds timeout) const;

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable added_;
  std::vector<Event> events_;  // guarded by mutex_
};

}  // namespace flotilla
