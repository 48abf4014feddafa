#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "telemetry/event_sink.h"

namespace flotilla {

enum class EventFieldType { kBoolean, kInteger, kNumber, kText, kIntegers, kTexts };

struct EventField {
  std::string_view name;
  EventFieldType type;
  std::string_view help;  // with the unit
  bool optional = false;
};

struct EventKind {
  std::string_view name;
  std::string_view help;
  std::vector<EventField> fields;
};

// Every kind that this program emits; docs/formats/events.md is made from it.
std::span<const EventKind> event_kinds();

// invalid_argument when the kind is not in the table, a field is missing, is not listed or has another type. A number
// may be null where it would be not-a-number or infinite, which JSON lacks. For tests of what is emitted; readers stay
// tolerant, since a newer program may have written the log.
Status check_event(const Event& event);

// The whole of docs/formats/events.md.
std::string events_page();

}  // namespace flotilla
