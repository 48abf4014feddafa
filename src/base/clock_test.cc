#include "base/clock.h"

#include <gtest/gtest.h>

namespace flotilla {
namespace {

using namespace std::chrono_literals;

TEST(Clock, the_system_clock_never_goes_back) {
  auto before = system_clock().monotonic();
  for (int i = 0; i < 1000; ++i) {
    const auto now = system_clock().monotonic();
    EXPECT_GE(now, before);
    before = now;
  }
  EXPECT_GT(system_clock().wall(), 1767225600s);  // 2026-01-01
}

TEST(Clock, a_manual_clock_moves_when_told) {
  ManualClock clock;
  clock.advance(1500ms);
  EXPECT_EQ(clock.monotonic(), 1500ms);
  EXPECT_EQ(clock.wall(), 1500ms);
}

TEST(UtcText, writes_a_moment_as_iso_8601) {
  EXPECT_EQ(utc_text(0ms), "1970-01-01T00:00:00.000Z");
  EXPECT_EQ(utc_text(1769860800123ms), "2026-01-31T12:00:00.123Z");
  EXPECT_EQ(utc_text(-1ms), "1969-12-31T23:59:59.999Z");
}

}  // namespace
}  // namespace flotilla
