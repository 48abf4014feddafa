#include "sync/change_history.h"

#include <algorithm>
#include <array>

namespace flotilla {

ChangeHistory advance(const ChangeHistory& history, std::span<const Change> changes, std::int64_t integers) {
  // How many there will be of each age; those that change again are counted where they are now, a few too many.
  std::array<std::int64_t, kHistoryVersions + 2> of_age{};
  for (const PastChange& past : history) ++of_age[static_cast<std::size_t>(past.age) + 1];
  of_age[1] = std::ssize(changes);
  int oldest = 0;
  std::int64_t kept = 0;
  for (std::int64_t sum = of_age[1]; oldest < kHistoryVersions && sum <= integers / kHistoryShare;) {
    kept = sum;
    ++oldest;
    sum += of_age[static_cast<std::size_t>(oldest) + 1];
  }

  if (oldest == 0) return {};

  ChangeHistory next;
  next.reserve(static_cast<std::size_t>(kept));
  auto past = history.begin();
  const auto keep_until = [&](std::uint64_t position) {
    for (; past != history.end() && past->position < position; ++past) {
      if (past->age < oldest) next.push_back({past->position, past->age + 1u, past->up});
    }
  };
  for (const Change& change : changes) {
    keep_until(change.position);
    if (past != history.end() && past->position == change.position) ++past;
    next.push_back({change.position, 1, change.step > 0});
  }
  keep_until(~std::uint64_t{0});
  return next;
}

}  // namespace flotilla
