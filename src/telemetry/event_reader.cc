#include "telemetry/event_reader.h"

#include <fmt/format.h>

#include "base/files.h"
#include "telemetry/event_folder.h"

namespace flotilla {

Result<std::vector<EventRecord>> EventReader::poll() {
  std::vector<EventRecord> records;
  const auto segments = list_segments(folder_);
  if (!segments.ok()) {
    if (segments.status().code() == StatusCode::kNotFound) return records;
    return segments.status();
  }
  for (const SegmentInfo& segment : *segments) {
    if (segment.number < segment_) continue;
    if (segment.number > segment_) {
      // The writer has gone on: what it left unfinished stays so.
      if (unfinished_bytes_ > 0) ++torn_lines_;
      segment_ = segment.number;
      offset_ = 0;
      unfinished_bytes_ = 0;
    }
    const Status status = read_segment(segment.number, records);
    if (status.ok()) continue;
    if (records.empty()) return status;
    break;  // the next call meets the error again
  }
  return records;
}

Status EventReader::read_segment(std::uint64_t number, std::vector<EventRecord>& records) {
  const std::filesystem::path path = segment_path(folder_, number);
  FLOTILLA_ASSIGN_OR_RETURN(const std::string text, read_text_file(path));
  if (text.size() < offset_) {
    return data_loss(fmt::format("{} has shrunk to {} bytes; {} were read", path.string(), text.size(), offset_));
  }
  auto parsed = parse_event_segment(std::string_view(text).substr(offset_));
  if (!parsed.ok()) {
    return std::move(parsed).status().with_context(fmt::format("{}, from byte {}", path.string(), offset_));
  }
  if (!parsed->records.empty()) {
    const std::uint64_t first = parsed->records.front().sequence;
    const std::uint64_t expected = sequence_ ? *sequence_ + 1 : 0;
    if (first < expected || (first > expected && offset_ > 0)) {
      return data_loss(fmt::format("{}: sequence {} where {} is next", path.string(), first, expected));
    }
    missing_ += first - expected;
    sequence_ = parsed->records.back().sequence;
  }
  unfinished_bytes_ = parsed->torn_bytes;
  offset_ = text.size() - parsed->torn_bytes;
  records.insert(records.end(), std::make_move_iterator(parsed->records.begin()),
                 std::make_move_iterator(parsed->records.end()));
  return ok_status();
}

}  // namespace flotilla
