#include "cli/stop_signals.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <future>

namespace flotilla {
namespace {

TEST(StopSignals, ASignalBecomesAStopRequest) {
  StopSignals signals;
  std::promise<void> asked;
  const std::stop_callback callback(signals.token(), [&] { asked.set_value(); });
  EXPECT_FALSE(signals.stopped());
  ::kill(::getpid(), SIGTERM);
  ASSERT_EQ(asked.get_future().wait_for(std::chrono::minutes(1)), std::future_status::ready);
  EXPECT_TRUE(signals.stopped());
}

}  // namespace
}  // namespace flotilla
