#include "rollout/wish.h"

#include <gtest/gtest.h>

namespace flotilla {
namespace {

using std::chrono::seconds;

Head head(std::uint64_t version, std::int64_t wanted) {
  Head head;
  head.version = Version(version);
  head.wanted = wanted;
  return head;
}

TEST(Wish, IsFilledSweepBySweep) {
  Wish wish(seconds(30));
  EXPECT_EQ(wish.take(head(0, 5), 2, 0, seconds(0)), 2);
  EXPECT_EQ(wish.take(head(0, 5), 2, 2, seconds(1)), 2);
  EXPECT_EQ(wish.take(head(0, 5), 2, 4, seconds(2)), 1);
  EXPECT_EQ(wish.take(head(0, 5), 2, 5, seconds(3)), 0);
  EXPECT_EQ(wish.reason(), "the learner to count the groups made with version 0");
}

TEST(Wish, OfASequentialLearnerIsFilledOnceAVersion) {
  Wish wish(seconds(30));
  std::int64_t uploaded = 0;
  for (std::uint64_t version = 0; version < 5; ++version) {
    EXPECT_EQ(wish.take(head(version, 0), 4, uploaded, seconds(0)), 0);
    EXPECT_EQ(wish.take(head(version, 4), 4, uploaded, seconds(0)), 4);
    EXPECT_EQ(wish.take(head(version, 4), 4, uploaded + 2, seconds(100)), 0) << "two are still being uploaded";
    uploaded += 4;
    EXPECT_EQ(wish.take(head(version, 3), 4, uploaded, seconds(101)), 0);
    EXPECT_EQ(wish.take(head(version, 1), 4, uploaded, seconds(102)), 0);
    EXPECT_EQ(wish.take(head(version, 0), 4, uploaded, seconds(103)), 0);
  }
}

TEST(Wish, RisesAgainWhenTheLearnerHasUsedWhatItCounted) {
  Wish wish(seconds(30));
  EXPECT_EQ(wish.take(head(0, 4), 4, 0, seconds(0)), 4);
  EXPECT_EQ(wish.take(head(0, 0), 4, 4, seconds(1)), 0);
  EXPECT_EQ(wish.take(head(0, 4), 4, 4, seconds(2)), 4);
}

TEST(Wish, ThatFallsAndRisesUnseenIsFilledAfterAWhile) {
  Wish wish(seconds(30));
  EXPECT_EQ(wish.take(head(0, 4), 4, 0, seconds(0)), 4);
  EXPECT_EQ(wish.take(head(0, 4), 4, 4, seconds(10)), 0);
  EXPECT_EQ(wish.take(head(0, 4), 4, 4, seconds(39)), 0);
  EXPECT_EQ(wish.take(head(0, 4), 4, 4, seconds(40)), 4);
  EXPECT_EQ(wish.take(head(0, 4), 4, 4, seconds(1000)), 0) << "not uploaded yet";
  EXPECT_EQ(wish.take(head(0, 4), 4, 8, seconds(1001)), 0);
  EXPECT_EQ(wish.take(head(0, 4), 4, 8, seconds(1031)), 4);
}

TEST(Wish, CountsWhatWasGivenBackAsNotMade) {
  Wish wish(seconds(30));
  EXPECT_EQ(wish.take(head(0, 5), 4, 0, seconds(0)), 4);
  wish.give_back(3);
  EXPECT_EQ(wish.take(head(0, 5), 8, 0, seconds(1)), 4);
}

TEST(Wish, LargerThanWhatOneWorkerMakesKeepsItBusy) {
  Wish wish(seconds(30));
  for (int sweep = 0; sweep < 100; ++sweep) {
    EXPECT_EQ(wish.take(head(0, 64), 4, 4 * sweep, seconds(10 * sweep)), 4) << sweep;
  }
}

TEST(Wish, FallsForTheGroupsOfOthersToo) {
  Wish wish(seconds(30));
  EXPECT_EQ(wish.take(head(0, 8), 4, 0, seconds(0)), 4);
  EXPECT_EQ(wish.take(head(0, 2), 4, 0, seconds(1)), 0) << "none of its own can have been counted";
}

TEST(Wish, SaysWhatItWaitsFor) {
  Wish wish(seconds(30));
  EXPECT_EQ(wish.take(head(0, 0), 2, 0, seconds(0)), 0);
  EXPECT_EQ(wish.reason(), "the learner wants no groups at present");
  EXPECT_EQ(wish.take(head(0, 5), 0, 0, seconds(0)), 0);
  EXPECT_EQ(wish.reason(), "room in the upload queue");
  Head paused = head(0, 5);
  paused.state = RunState::kPaused;
  EXPECT_EQ(wish.take(paused, 2, 0, seconds(0)), 0);
  EXPECT_EQ(wish.reason(), "the run is paused");
  paused.state = RunState::kFinished;
  EXPECT_EQ(wish.take(paused, 2, 0, seconds(0)), 0);
  EXPECT_EQ(wish.reason(), "the run is finished");
}

}  // namespace
}  // namespace flotilla
