#include "rollout/operating_point.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <set>

namespace flotilla {
namespace {

using std::chrono::nanoseconds;

constexpr std::int64_t kGroupSize = 8;

nanoseconds seconds(double value) { return nanoseconds(static_cast<std::int64_t>(value * 1e9)); }

// A worker whose sweep of n groups takes duration(n) seconds, beside a learner that publishes every `interval` seconds.
struct Fleet {
  std::function<double(double groups)> duration;
  double interval = 1e9;
  double now = 0;

  std::set<std::int64_t> sweep(OperatingPoint& point, int sweeps) {
    std::set<std::int64_t> used;
    for (int i = 0; i < sweeps; ++i) {
      point.see(Version(static_cast<std::uint64_t>(now / interval)), seconds(now));
      const std::int64_t groups = point.groups();
      used.insert(groups);
      const double time = duration(static_cast<double>(groups));
      now += time;
      point.add(groups, groups * kGroupSize, seconds(time));
    }
    return used;
  }
};

// Weights are read once a pass whatever the number of sequences; a sequence adds arithmetic.
double typical(double groups) { return 10 + 2 * groups; }

TEST(OperatingPoint, BeginsWithOneGroupAndClimbsWhileItPays) {
  OperatingPoint point(16);
  EXPECT_EQ(point.groups(), 1);
  Fleet fleet{.duration = typical};
  EXPECT_EQ(fleet.sweep(point, 10), (std::set<std::int64_t>{1, 2, 4, 8, 16}));
  EXPECT_EQ(point.groups(), 16);
}

TEST(OperatingPoint, TakesTheSmallestSizeAtThePeak) {
  OperatingPoint point(16);
  // Beyond four groups a sweep takes twice as long for twice the groups.
  Fleet fleet{.duration = [](double groups) { return groups <= 4 ? 10 + groups : 3.5 * groups; }};
  fleet.sweep(point, 20);
  EXPECT_EQ(point.groups(), 4);
}

TEST(OperatingPoint, EndsASweepWithinThePublishInterval) {
  OperatingPoint point(16);
  Fleet fleet{.duration = typical, .interval = 20};
  const std::set<std::int64_t> used = fleet.sweep(point, 30);
  EXPECT_EQ(point.groups(), 4) << "18 s; 8 groups would take 26 s";
  EXPECT_FALSE(used.contains(16));
}

TEST(OperatingPoint, SweepsOneGroupWhenNothingFits) {
  OperatingPoint point(16);
  Fleet fleet{.duration = typical, .interval = 3};
  fleet.sweep(point, 20);
  EXPECT_EQ(point.groups(), 1);
}

TEST(OperatingPoint, FollowsAMachineThatChanges) {
  OperatingPoint point(16);
  Fleet fleet{.duration = typical, .interval = 45};
  fleet.sweep(point, 20);
  ASSERT_EQ(point.groups(), 16);
  fleet.duration = [](double groups) { return 4 * typical(groups); };
  fleet.sweep(point, 100);
  EXPECT_EQ(point.groups(), 1) << "48 s is the least; no size fits";
  fleet.duration = typical;
  fleet.sweep(point, 200);
  EXPECT_EQ(point.groups(), 16);
}

TEST(OperatingPoint, CountsSweepsThatTheLearnerCutShortForWhatTheyWere) {
  OperatingPoint point(16);
  for (int i = 0; i < 20; ++i) point.add(3, 24, seconds(5));
  EXPECT_EQ(point.groups(), 1) << "three groups are no size of its own";
  for (int i = 0; i < 2; ++i) point.add(1, 8, seconds(12));
  EXPECT_EQ(point.groups(), 2);
  for (int i = 0; i < 20; ++i) point.add(1, 8, seconds(12));
  EXPECT_EQ(point.groups(), 2) << "it still wants to know";
}

TEST(OperatingPoint, NeverSweepsMoreThanMemoryAllows) {
  OperatingPoint point(6);
  Fleet fleet{.duration = typical};
  const std::set<std::int64_t> used = fleet.sweep(point, 200);
  EXPECT_EQ(*used.rbegin(), 4);
}

}  // namespace
}  // namespace flotilla
