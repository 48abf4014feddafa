#include "hub/limits.h"

#include <gtest/gtest.h>

#include <fmt/format.h>

namespace flotilla {
namespace {

using namespace std::chrono_literals;

TEST(Limits, ABucketLetsItsRateThroughAndABurstAfterAPause) {
  TokenBucket bucket(10, 20);
  const auto taken = [&](std::chrono::nanoseconds now) {
    int count = 0;
    while (bucket.take(now)) ++count;
    return count;
  };
  EXPECT_EQ(taken(0s), 20);
  EXPECT_EQ(taken(500ms), 5);
  EXPECT_EQ(taken(500ms), 0);
  EXPECT_EQ(taken(1h), 20);
}

TEST(Limits, NamesHaveTheirOwnRateAndStrangersDoNotFillTheMemory) {
  Throttle throttle;
  EXPECT_TRUE(throttle.take("a", 0.5, 0s));
  EXPECT_FALSE(throttle.take("a", 0.5, 0s));
  EXPECT_TRUE(throttle.take("b", 0.5, 0s));
  int taken = 0;
  for (int i = 0; i < 10000; ++i) taken += throttle.take(fmt::format("x{}", i), 1, 0s);
  EXPECT_LT(taken, 5000);
  EXPECT_TRUE(throttle.take("fresh", 1, 1min)) << "those that are not heard of any more are forgotten";
}

TEST(Limits, WhatIsOnItsWayCounts) {
  Ledger ledger;
  EXPECT_TRUE(ledger.hold("ada", 60, 100).ok());
  EXPECT_EQ(ledger.hold("ada", 60, 100).code(), StatusCode::kResourceExhausted);
  EXPECT_TRUE(ledger.hold("bob", 60, 100).ok());
  ledger.settle("ada", 60, 30);
  EXPECT_TRUE(ledger.hold("ada", 70, 100).ok());
  EXPECT_FALSE(ledger.hold("ada", 1, 100).ok());
  EXPECT_TRUE(ledger.hold("ada", 1000, 0).ok()) << "without a limit";
  ledger.settle("ada", 1070, -1000);
  EXPECT_EQ(ledger.used()["ada"], 0u) << "never below nothing";
  ledger.begin_count();
  ledger.set_used({{"ada", 7}});
  EXPECT_EQ(ledger.used()["ada"], 7u);
}

TEST(Limits, WhatGrowsDuringACountIsNeverMissed) {
  Ledger ledger;
  ledger.settle("ada", 0, 50);
  ledger.begin_count();
  ledger.settle("ada", 0, 20);
  ledger.settle("ada", 0, -30);
  ledger.set_used({{"ada", 50}});
  EXPECT_EQ(ledger.used()["ada"], 70u) << "the 20 may not be among the 50";
  ledger.begin_count();
  ledger.set_used({{"ada", 40}});
  EXPECT_EQ(ledger.used()["ada"], 40u);
}

}  // namespace
}  // namespace flotilla
