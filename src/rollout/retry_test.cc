#include "rollout/retry.h"

#include <gtest/gtest.h>

#include "rollout/run_for_tests.h"

namespace flotilla {
namespace {

using std::chrono::milliseconds;

TEST(RetryPause, DoublesWithJitterUpToALimit) {
  const RetryPolicy policy{.first = milliseconds(100), .last = milliseconds(1000), .give_up = milliseconds(0)};
  PhiloxStream random(1, 0);
  for (int round = 0; round < 50; ++round) {
    for (const auto& [failures, longest] : {std::pair{1, 100}, {2, 200}, {4, 800}, {5, 1000}, {60, 1000}}) {
      const auto pause = retry_pause(policy, failures, random);
      EXPECT_GE(pause, milliseconds(longest / 2));
      EXPECT_LE(pause, milliseconds(longest));
    }
  }
}

class RetrierTest : public testing::Test {
 protected:
  Status run(int failures, Status failure, milliseconds give_up = milliseconds(60'000)) {
    Retrier retrier({.first = milliseconds(1), .last = milliseconds(1), .give_up = give_up}, 1, sink_, clock_);
    return retrier.run("get", "key", stop_.get_token(), [&]() -> Status {
      clock_.advance(milliseconds(10));
      return ++attempts_ > failures ? ok_status() : failure;
    });
  }
  WaitingSink sink_;
  ManualClock clock_;
  std::stop_source stop_;
  int attempts_ = 0;
};

TEST_F(RetrierTest, TriesAgainWhatMayPass) {
  EXPECT_TRUE(run(3, unavailable("away")).ok());
  EXPECT_EQ(attempts_, 4);
  const auto errors = sink_.events("hub.error");
  ASSERT_EQ(errors.size(), 3u);
  EXPECT_EQ(errors[0]["operation"], "get");
  EXPECT_EQ(errors[0]["key"], "key");
  EXPECT_NE(errors[0]["message"].get<std::string>().find("away"), std::string::npos);
}

TEST_F(RetrierTest, DoesNotTryAgainWhatStays) {
  EXPECT_EQ(run(3, permission_denied("no")).code(), StatusCode::kPermissionDenied);
  EXPECT_EQ(attempts_, 1);
}

TEST_F(RetrierTest, GivesUpAfterATime) {
  const Status status = run(1000, deadline_exceeded("slow"), milliseconds(50));
  EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded);
  EXPECT_EQ(attempts_, 5);
}

TEST_F(RetrierTest, EndsAPauseWhenAskedToStop) {
  stop_.request_stop();
  EXPECT_EQ(run(1000, unavailable("away")).code(), StatusCode::kCancelled);
  EXPECT_EQ(attempts_, 1);
}

}  // namespace
}  // namespace flotilla
