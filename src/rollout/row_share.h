#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace flotilla {

struct RowShare {
  std::vector<std::int32_t> rows;  // of each stream
  std::size_t next = 0;            // pass as `first` next time
};

// How many of its waiting tokens each stream appends in the next forward call, at most `budget` (> 0) in all. Every
// waiting stream gets one row first, round robin from `first` on, so that a long observation never holds up the others'
// decoding; what is left goes to the streams with more to append, in the same order.
RowShare share_rows(std::span<const std::int32_t> waiting, std::int32_t budget, std::size_t first);

}  // namespace flotilla
