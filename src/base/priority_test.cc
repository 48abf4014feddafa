#include "base/priority.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/resource.h>

#include <thread>

namespace flotilla {
namespace {

TEST(LowerPriority, HoldsForTheThreadAndThoseThatItStarts) {
  const int before = getpriority(PRIO_PROCESS, 0);
  std::thread([] {
    ASSERT_TRUE(lower_priority(Priority::kLow).ok());
    EXPECT_GE(getpriority(PRIO_PROCESS, 0), 10);
    ASSERT_TRUE(lower_priority(Priority::kIdle).ok());
    std::thread([] {
      EXPECT_EQ(getpriority(PRIO_PROCESS, 0), 19);
      const int policy = sched_getscheduler(0);
      EXPECT_TRUE(policy == SCHED_IDLE || policy == SCHED_BATCH) << policy;
    }).join();
  }).join();
  EXPECT_EQ(getpriority(PRIO_PROCESS, 0), before) << "other threads keep theirs";
}

}  // namespace
}  // namespace flotilla
