#include "learn/advantages.h"

#include <gtest/gtest.h>

namespace flotilla {
namespace {

TEST(Advantages, AreTheRewardMinusTheMean) {
  EXPECT_EQ(advantages(std::vector<double>{1, 0, 0, 1}), (std::vector<float>{0.5f, -0.5f, -0.5f, 0.5f}));
}

TEST(Advantages, AreExactlyZeroWhenAllRewardsAreEqual) {
  for (const double reward : {0.1, 0.7, 1.0, -3.3, static_cast<double>(0.1f)}) {
    for (std::size_t size = 1; size <= 17; ++size) {
      for (const float advantage : advantages(std::vector<double>(size, reward))) EXPECT_EQ(advantage, 0.0f);
    }
  }
}

TEST(Advantages, OfAnEmptyOrASingleEpisodeAreNoNumbersOutOfRange) {
  EXPECT_TRUE(advantages({}).empty());
  EXPECT_EQ(advantages(std::vector<double>{5}), std::vector<float>{0.0f});
}

}  // namespace
}  // namespace flotilla
