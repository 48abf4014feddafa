#include "rollout/row_share.h"

#include <algorithm>

namespace flotilla {

RowShare share_rows(std::span<const std::int32_t> waiting, std::int32_t budget, std::size_t first) {
  const std::size_t streams = waiting.size();
  RowShare share{.rows = std::vector<std::int32_t>(streams, 0), .next = 0};
  if (streams == 0) return share;
  first %= streams;
  for (std::size_t i = 0; i < streams; ++i) {
    const std::size_t stream = (first + i) % streams;
    if (waiting[stream] == 0) continue;
    if (budget == 0) {
      share.next = stream;
      return share;
    }
    share.rows[stream] = 1;
    --budget;
  }
  for (std::size_t i = 0; i < streams && budget > 0; ++i) {
    const std::size_t stream = (first + i) % streams;
    const std::int32_t more = std::min(budget, waiting[stream] - share.rows[stream]);
    share.rows[stream] += more;
    budget -= more;
  }
  return share;
}

}  // namespace flotilla
