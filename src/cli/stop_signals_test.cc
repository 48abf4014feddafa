#include "cli/stop_signals.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

namespace flotilla {
namespace {

TEST(StopSignals, ASignalBecomesAStopRequest) {
  StopSignals signals;
  EXPECT_FALSE(signals.wait_for(std::chrono::milliseconds(1)));
  ::kill(::getpid(), SIGTERM);
  EXPECT_TRUE(signals.wait_for(std::chrono::minutes(1)));
  EXPECT_TRUE(signals.token().stop_requested());
}

}  // namespace
}  // namespace flotilla
