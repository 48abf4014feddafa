#pragma once

#include <chrono>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

namespace flotilla {

// One thing that happened. docs/formats/events.md lists the kinds and their fields.
struct Event {
  std::string kind;  // "learner.step", "worker.sweep", ...: part.what
  nlohmann::json fields;
};

// Where any layer reports what it does. Emitting never fails and never blocks on I/O for long: a sink that cannot write
// counts what it lost and says so later. Thread safe.
class EventSink {
 public:
  virtual ~EventSink() = default;
  virtual void emit(Event event) = 0;
};

// Takes everything and keeps nothing.
EventSink& null_event_sink();

}  // namespace flotilla
