#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "telemetry/event_sink.h"

namespace flotilla {

// An event as the log keeps it (docs/formats/events.md).
struct EventRecord {
  std::chrono::milliseconds time{0};  // wall clock
  std::chrono::nanoseconds monotonic{0};
  std::string writer;
  std::uint64_t sequence = 0;
  Event event;
};

// One line with its line feed. Bytes that are not UTF-8 are replaced, never an error.
std::string event_line(const EventRecord& record);
// The line without its line feed. data_loss when it is not exactly an event.
Result<EventRecord> parse_event_line(std::string_view line);

// What a segment holds.
struct EventSegment {
  std::vector<EventRecord> records;
  std::uint64_t torn_bytes = 0;  // after the last line feed: a line that a killed writer did not finish
};

// data_loss "line 7: ..." when a finished line is not an event or the sequence has a gap.
Result<EventSegment> parse_event_segment(std::string_view text);

}  // namespace flotilla
