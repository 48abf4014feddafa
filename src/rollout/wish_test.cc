#include "rollout/wish.h"

#include <gtest/gtest.h>

namespace flotilla {
namespace {

using std::chrono::seconds;

Head head(std::uint64_t version, std::int64_t wanted, std::uint64_t sequence = 1) {
  Head head;
  head.version = Version(version);
  head.wanted = wanted;
  head.sequence = sequence;
  return head;
}

TEST(Wish, IsFilledSweepBySweep) {
  Wish wish(seconds(30));
  EXPECT_EQ(wish.take(head(0, 5), 2, seconds(0)), 2);
  EXPECT_EQ(wish.take(head(0, 5), 2, seconds(1)), 2);
  EXPECT_EQ(wish.take(head(0, 5), 2, seconds(2)), 1);
  EXPECT_EQ(wish.take(head(0, 5), 2, seconds(3)), 0);
  EXPECT_NE(wish.reason().find("the 5 groups made with version 0"), std::string::npos);
}

TEST(Wish, IsNotFilledTwiceWhileTheLearnerCounts) {
  Wish wish(seconds(30));
  EXPECT_EQ(wish.take(head(0, 4, 1), 4, seconds(0)), 4);
  EXPECT_EQ(wish.take(head(0, 3, 2), 4, seconds(1)), 0);
  EXPECT_EQ(wish.take(head(0, 1, 3), 4, seconds(2)), 0);
  EXPECT_EQ(wish.take(head(1, 4, 4), 4, seconds(3)), 4);
}

TEST(Wish, GrowsWithinAVersion) {
  Wish wish(seconds(30));
  EXPECT_EQ(wish.take(head(1, 1, 1), 4, seconds(0)), 1);
  EXPECT_EQ(wish.take(head(1, 4, 2), 4, seconds(1)), 3);
}

TEST(Wish, IsFilledAgainWhenHeadStaysAsItIs) {
  Wish wish(seconds(30));
  EXPECT_EQ(wish.take(head(0, 2), 2, seconds(0)), 2);
  EXPECT_EQ(wish.take(head(0, 2), 2, seconds(29)), 0);
  EXPECT_EQ(wish.take(head(0, 2), 2, seconds(30)), 2);
  EXPECT_EQ(wish.take(head(0, 2), 2, seconds(31)), 0);
  EXPECT_EQ(wish.take(head(0, 1, 2), 2, seconds(59)), 0) << "head has changed: patience begins anew";
  EXPECT_EQ(wish.take(head(0, 1, 2), 2, seconds(89)), 1);
}

TEST(Wish, SaysWhatItWaitsFor) {
  Wish wish(seconds(30));
  EXPECT_EQ(wish.take(head(0, 0), 2, seconds(0)), 0);
  EXPECT_NE(wish.reason().find("wants no groups"), std::string::npos);
  EXPECT_EQ(wish.take(head(0, 5), 0, seconds(0)), 0);
  EXPECT_NE(wish.reason().find("upload queue"), std::string::npos);
  Head paused = head(0, 5);
  paused.state = RunState::kPaused;
  EXPECT_EQ(wish.take(paused, 2, seconds(0)), 0);
  EXPECT_NE(wish.reason().find("paused"), std::string::npos);
  paused.state = RunState::kFinished;
  EXPECT_EQ(wish.take(paused, 2, seconds(0)), 0);
  EXPECT_NE(wish.reason().find("finished"), std::string::npos);
}

}  // namespace
}  // namespace flotilla
