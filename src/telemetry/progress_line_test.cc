#include "telemetry/progress_line.h"

#include <sstream>

#include <gtest/gtest.h>

#include "telemetry/terminal.h"

namespace flotilla {
namespace {

using namespace std::chrono_literals;

TEST(ProgressLine, is_rewritten_in_place_on_a_terminal) {
  std::ostringstream out;
  ManualClock clock;
  {
    ProgressLine line(out, {.interactive = true, .width = 10}, clock);
    line.update("step 1");
    line.update("step 2");  // too early
    EXPECT_EQ(out.str(), "\r\x1b[Kstep 1");
    clock.advance(200ms);
    line.update("step 3 and more");
    EXPECT_EQ(out.str(), "\r\x1b[Kstep 1\r\x1b[Kstep 3 an");
    line.print("published");
    EXPECT_EQ(out.str(), "\r\x1b[Kstep 1\r\x1b[Kstep 3 an\r\x1b[Kpublished\n\r\x1b[Kstep 3 an");
    out.str("");
    line.update("last");
  }
  EXPECT_EQ(out.str(), "\r\x1b[Klast\n");
}

TEST(ProgressLine, characters_are_never_cut) {
  std::ostringstream out;
  ManualClock clock;
  ProgressLine line(out, {.interactive = true, .width = 4}, clock);
  line.update("ééééé");
  EXPECT_EQ(out.str(), "\r\x1b[Kééé");
}

TEST(ProgressLine, writes_plain_lines_now_and_then_elsewhere) {
  std::ostringstream out;
  ManualClock clock;
  {
    ProgressLine line(out, {.interactive = false, .width = 4}, clock);
    line.update("step\n1 is long");
    clock.advance(9s);
    line.update("step 2");
    line.print("published");
    clock.advance(1s);
    line.update("step 3");
    line.update("step 3");
    line.update("step 4");
  }
  EXPECT_EQ(out.str(), "step 1 is long\npublished\nstep 3\nstep 4\n");
}

TEST(Terminal, a_pipe_is_not_one) { EXPECT_FALSE(inspect_terminal(-1).interactive); }

TEST(Terminal, the_locale_tells_whether_unicode_is_shown) {
  ::setenv("LC_ALL", "en_GB.UTF-8", 1);
  EXPECT_TRUE(inspect_terminal(-1).unicode);
  ::setenv("LC_ALL", "C", 1);
  EXPECT_FALSE(inspect_terminal(-1).unicode);
  ::unsetenv("LC_ALL");
}

}  // namespace
}  // namespace flotilla
