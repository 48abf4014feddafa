#include "telemetry/event_folder.h"

#include <algorithm>
#include <charconv>

#include "base/ids.h"

namespace flotilla {
namespace fs = std::filesystem;

fs::path segment_path(const fs::path& folder, std::uint64_t number) { return folder / (padded(number) + ".jsonl"); }

Result<std::vector<SegmentInfo>> list_segments(const fs::path& folder) {
  std::vector<SegmentInfo> segments;
  std::error_code error;
  fs::directory_iterator entry(folder, error);
  for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
    const std::string stem = entry->path().stem().string();
    SegmentInfo segment;
    const auto [end, failure] = std::from_chars(stem.data(), stem.data() + stem.size(), segment.number);
    if (failure != std::errc() || entry->path() != segment_path(folder, segment.number)) continue;
    std::error_code vanished;
    segment.bytes = fs::file_size(entry->path(), vanished);
    if (!vanished) segments.push_back(segment);
  }
  if (error) return errno_status(error.value(), "list " + folder.string());
  std::sort(segments.begin(), segments.end(), [](const auto& a, const auto& b) { return a.number < b.number; });
  return segments;
}

}  // namespace flotilla
