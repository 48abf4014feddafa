#include "sync/halving.h"

#include <cmath>

#include <gtest/gtest.h>

#include "base/philox.h"

namespace flotilla {
namespace {

TEST(Survival, IsTwoToTheMinusTime) {
  EXPECT_EQ(survival(0), 1u << 30);
  EXPECT_EQ(survival(1u << kHalfLifeBits), 1u << 29);
  EXPECT_EQ(survival(kHorizon), kSurvivesHorizon);
  EXPECT_EQ(survival(~std::uint64_t{0}), 0u);
  PhiloxStream random(1, 1);
  for (int i = 0; i < 100'000; ++i) {
    const std::uint64_t time = random.below(kHorizon + 1);
    const double exact = std::ldexp(std::exp2(-std::ldexp(static_cast<double>(time), -kHalfLifeBits)), 30);
    EXPECT_NEAR(survival(time), exact, 2 + 2e-8 * exact) << time;
  }
}

TEST(Survival, FallsWithEveryUnitOfTimeAsFarAsTheHorizon) {
  // All times near the borders of table entries and half-lives, and samples of the others.
  for (std::uint64_t border = 0; border < kHorizon; border += 1u << 13) {
    for (std::uint64_t time = border < 8 ? 0 : border - 8; time < border + 8; ++time) {
      ASSERT_GT(survival(time), survival(time + 1)) << time;
    }
  }
  for (std::uint64_t time = kHorizon - 100'000; time < kHorizon; ++time) ASSERT_GT(survival(time), survival(time + 1));
}

TEST(Survival, IsTheSameOnEveryMachine) {
  // Sum of 4096 values over the horizon, as the first machine had it: a change of it makes old deltas unreadable.
  std::uint64_t sum = 0;
  for (std::uint64_t i = 0; i < 4096; ++i) sum = sum * 31 + survival(i * 16411 % kHorizon);
  EXPECT_EQ(sum, 1284491636923253239u);
}

TEST(Survival, ATimeIsFoundAsNearAsIsSaid) {
  // A reader skips what ends further off. All survivals near the borders of table entries and half-lives, and samples,
  // of ranges of all sizes.
  PhiloxStream random(2, 1);
  const auto expect_near = [&](std::uint64_t time) {
    const std::uint64_t unit = 4 + random.below(std::uint64_t{1} << random.below(34));
    for (const std::uint64_t left : {unit * survival(time), unit * survival(time + 1) + 1}) {
      const std::uint64_t found = time_near(unit << 30, left);
      EXPECT_LT(std::abs(static_cast<double>(found) - static_cast<double>(time)), kTimeError) << time << ' ' << unit;
    }
  };
  for (std::uint32_t border = survival(kHorizon); border <= 1u << 30; border += 1u << 14) {
    const auto exact = std::ldexp(30 - std::log2(border), kHalfLifeBits);
    const auto time = static_cast<std::uint64_t>(exact);
    for (std::uint64_t near = time < 8 ? 0 : time - 8; near <= time + 8 && near < kHorizon; ++near) expect_near(near);
  }
  for (int i = 0; i < 100'000; ++i) expect_near(random.below(kHorizon));
}

}  // namespace
}  // namespace flotilla
