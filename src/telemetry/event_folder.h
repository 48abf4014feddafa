#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "base/status.h"

namespace flotilla {

// A folder of event log segments (docs/formats/events.md).
struct SegmentInfo {
  std::uint64_t number = 0;
  std::uint64_t bytes = 0;
};

std::filesystem::path segment_path(const std::filesystem::path& folder, std::uint64_t number);
// By number. Other files are ignored. not_found when there is no such folder.
Result<std::vector<SegmentInfo>> list_segments(const std::filesystem::path& folder);

}  // namespace flotilla
