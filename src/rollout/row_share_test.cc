#include "rollout/row_share.h"

#include <gtest/gtest.h>

#include <numeric>

#include "base/philox.h"

namespace flotilla {
namespace {

using Rows = std::vector<std::int32_t>;

TEST(RowShare, GivesEveryDecodingStreamItsRowBesideALongObservation) {
  const RowShare share = share_rows(Rows{1, 100, 1, 1}, 16, 0);
  EXPECT_EQ(share.rows, (Rows{1, 13, 1, 1}));
  EXPECT_EQ(share.next, 0u);
}

TEST(RowShare, TakesTurnsWhenThereAreMoreStreamsThanRows) {
  const Rows waiting = {1, 1, 5, 1, 1};
  const RowShare first = share_rows(waiting, 3, 0);
  EXPECT_EQ(first.rows, (Rows{1, 1, 1, 0, 0}));
  EXPECT_EQ(first.next, 3u);
  const RowShare second = share_rows(waiting, 3, first.next);
  EXPECT_EQ(second.rows, (Rows{1, 0, 0, 1, 1}));
  EXPECT_EQ(second.next, 1u);
}

TEST(RowShare, LeavesOutStreamsThatWaitForNothing) {
  EXPECT_EQ(share_rows(Rows{0, 2, 0}, 8, 2).rows, (Rows{0, 2, 0}));
  EXPECT_TRUE(share_rows(Rows{}, 8, 5).rows.empty());
}

TEST(RowShare, NeverStarvesAStreamAndNeverExceedsTheBudget) {
  PhiloxStream random(7, 0);
  for (int round = 0; round < 200; ++round) {
    Rows waiting(1 + random.below(20));
    for (auto& w : waiting) w = static_cast<std::int32_t>(random.below(30));
    const auto budget = static_cast<std::int32_t>(1 + random.below(10));
    std::size_t first = random.below(20);
    std::int64_t left = std::accumulate(waiting.begin(), waiting.end(), std::int64_t{0});
    while (left > 0) {
      const RowShare share = share_rows(waiting, budget, first);
      const auto given = std::accumulate(share.rows.begin(), share.rows.end(), std::int64_t{0});
      ASSERT_EQ(given, std::min<std::int64_t>(left, budget)) << "round " << round;
      for (std::size_t i = 0; i < waiting.size(); ++i) {
        ASSERT_LE(share.rows[i], waiting[i]);
        waiting[i] -= share.rows[i];
      }
      left -= given;
      first = share.next;
    }
  }
}

}  // namespace
}  // namespace flotilla
