#include "telemetry/event_sink.h"

namespace flotilla {
namespace {

class NullEventSink final : public EventSink {
 public:
  void emit(Event) override {}
};

}  // namespace

EventSink& null_event_sink() {
  static NullEventSink sink;
  return sink;
}

}  // namespace flotilla
