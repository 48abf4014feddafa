#include "benchmark/sync_benchmark.h"

#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "benchmark/small_model_for_tests.h"

namespace flotilla {
namespace {

TEST(SyncBenchmark, ChangesAtRandomAreAsManyAsAskedForAndEachOfOneStep) {
  const GridState &before = small_model().state, after = random_changes(before, 0.1, 1);
  std::int64_t changed = 0, up = 0, total = 0;
  for (std::size_t tensor = 0; tensor < before.tensors.size(); ++tensor) {
    const auto &from = before.tensors[tensor].q, &to = after.tensors[tensor].q;
    total += std::ssize(from);
    for (std::size_t i = 0; i < from.size(); ++i) {
      const int step = to[i] - from[i];
      ASSERT_LE(std::abs(step), 1);
      changed += step != 0;
      up += step == 1;
    }
  }
  const auto n = static_cast<double>(total);
  EXPECT_NEAR(static_cast<double>(changed), 0.1 * n, 5 * std::sqrt(0.09 * n));
  EXPECT_NEAR(static_cast<double>(up), 0.05 * n, 5 * std::sqrt(0.05 * n));
  EXPECT_EQ(random_changes(before, 0, 1), before);
}

TEST(SyncBenchmark, TheBoundIsThatOfIndependentChanges) {
  // One in four changes: H = 1/4 * 2 + 3/4 * log2(4/3) = 0.8113 bits an integer, and a quarter of a bit.
  EXPECT_NEAR(memoryless_bytes(1000, 4000), (4000 * 0.8112781 + 1000) / 8, 0.01);
  EXPECT_EQ(memoryless_bytes(0, 4000), 0);
  EXPECT_EQ(memoryless_bytes(4000, 4000), 500);
}

GridState two_tensors() {
  GridState state;
  state.tensors.resize(2);
  state.tensors[0].q = {1, 2, 3, 4};
  state.tensors[0].scales = {10};
  state.tensors[1].vector_q = {1000, -1000};
  state.tensors[1].vector_scale = 1;
  return state;
}

TEST(SyncBenchmark, GapsAreThoseBetweenWhatDiffers) {
  const GridState before = two_tensors();
  GridState after = before;
  after.tensors[0].q = {1, 3, 3, 2};
  after.tensors[1].vector_q = {1000, -900};
  after.tensors[0].scales = {0x1234};
  EXPECT_THAT(plain_gaps(before, after),
              testing::ElementsAre(8, 2, 0, 1, 0, 0, 1, 0, 0,  // integers, vector's integers, scales, vector's scale
                                   3, 1, 1, 1,                 // gaps
                                   4, 1, 2, 199, 1,            // steps +1, -2, +100
                                   1, 0, 2, 0x34, 0x12));
}

TEST(SyncBenchmark, ExclusiveOrIsZeroWhereNothingDiffers) {
  const GridState before = two_tensors();
  GridState after = before;
  after.tensors[0].q[1] ^= 5;
  Bytes expected(4 + 2 + 4 + 4 + 4);  // a vector's scale is there for each tensor
  expected[1] = 5;
  EXPECT_EQ(exclusive_or(before, after), expected);
}

TEST(SyncBenchmark, MeasuresTheDeltaThatLeadsFromOneStateToTheOther) {
  const RandomModel& model = small_model();
  const GridState after = random_changes(model.state, 0.05, 1);
  const std::vector<int> threads = {1, 2};
  const auto cost =
      measure_delta(model.description, model.state, no_history(model.description), after, threads, 3).value();
  const auto encoded = encode_delta(model.description, model.state, no_history(model.description), after).value();
  EXPECT_EQ(cost.delta.bytes, encoded.bytes);
  EXPECT_EQ(cost.delta.history, encoded.history);
  ASSERT_EQ(cost.speeds.size(), 2u);
  EXPECT_EQ(cost.speeds[1].threads, 2);
  EXPECT_EQ(cost.speeds[1].encode_seconds.size(), 3u);
  EXPECT_EQ(cost.speeds[1].apply_seconds.size(), 3u);
  EXPECT_GE(cost.encode_peak_bytes, 0);
  EXPECT_GE(cost.apply_peak_bytes, 0);
}

TEST(SyncBenchmark, MeasuresNoStatesOfOtherSizes) {
  const RandomModel& model = small_model();
  GridState after = model.state;
  after.tensors.pop_back();
  const std::vector<int> threads = {1};
  EXPECT_FALSE(measure_delta(model.description, model.state, no_history(model.description), after, threads, 1).ok());
}

}  // namespace
}  // namespace flotilla
