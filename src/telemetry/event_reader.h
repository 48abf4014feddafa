#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <vector>

#include "base/status.h"
#include "telemetry/event_record.h"

namespace flotilla {

// Reads a writer's folder of segments, also while it is being written. One thread.
class EventReader {
 public:
  explicit EventReader(std::filesystem::path folder) : folder_(std::move(folder)) {}

  // The events since the last call, in order; none while the folder does not exist. data_loss names the segment and the
  // line of what is corrupt, and the reader stays before the corrupt piece.
  Result<std::vector<EventRecord>> poll();

  // Torn lines passed over so far, and bytes at the end of the newest segment that are no whole line (yet).
  std::uint64_t torn_lines() const { return torn_lines_; }
  std::uint64_t unfinished_bytes() const { return unfinished_bytes_; }
  // Events that are missing since whole segments were removed.
  std::uint64_t missing() const { return missing_; }

 private:
  Status read_segment(std::uint64_t number, std::vector<EventRecord>& records);

  std::filesystem::path folder_;
  std::uint64_t segment_ = 0;
  std::uint64_t offset_ = 0;               // in segment_: everything before it was returned
  std::optional<std::uint64_t> sequence_;  // of the last event
  std::uint64_t torn_lines_ = 0;
  std::uint64_t unfinished_bytes_ = 0;
  std::uint64_t missing_ = 0;
};

}  // namespace flotilla
