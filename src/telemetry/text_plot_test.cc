#include "telemetry/text_plot.h"

#include <cmath>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

namespace flotilla {
namespace {

constexpr Terminal kAscii{.width = 40};
constexpr Terminal kUnicode{.unicode = true, .width = 40};

TEST(TextPlot, draws_a_rise_in_ascii) {
  const std::vector<double> values = {0, 0, 1, 2, 2, 1};
  EXPECT_EQ(text_plot(values, {.height = 3, .title = "reward"}, kAscii),
            "reward\n"
            "       2 |   .-.\n"
            "       1 |  .' '\n"
            "       0 |--'\n"
            "          step 1 6\n");
}

TEST(TextPlot, draws_a_jump_in_unicode) {
  const std::vector<double> values = {0, 0, 3, 3};
  EXPECT_EQ(text_plot(values, {.height = 4, .x_first = 10, .x_last = 40}, kUnicode),
            "       3 ┤  ╭─\n"
            "       2 ┤  │\n"
            "       1 ┤  │\n"
            "       0 ┤──╯\n"
            "          step 10 40\n");
}

TEST(TextPlot, a_long_series_is_averaged_to_the_width) {
  std::vector<double> values(1000);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = i % 2;  // a mean of one half everywhere
  const std::string plot = text_plot(values, {.height = 3}, kAscii);
  std::size_t begin = 0;
  for (std::size_t end; (end = plot.find('\n', begin)) != std::string::npos; begin = end + 1)
    EXPECT_LE(end - begin, 40u);
  EXPECT_NE(plot.find("step 1"), std::string::npos);
  EXPECT_NE(plot.find(" 1000\n"), std::string::npos);
}

TEST(TextPlot, a_constant_lies_in_the_middle) {
  EXPECT_EQ(text_plot(std::vector<double>{0.5, 0.5}, {.height = 3}, kAscii),
            "     0.6 |\n"
            "     0.5 |--\n"
            "     0.4 |\n"
            "          step 1 2\n");
}

TEST(TextPlot, values_that_are_not_finite_are_left_out) {
  const double nan = std::nan("");
  EXPECT_EQ(text_plot(std::vector<double>{0, nan, 0}, {.height = 3}, kAscii).substr(0, 44),
            "     0.1 |\n       0 |- -\n    -0.1 |\n        ");
  EXPECT_EQ(text_plot(std::vector<double>{nan, std::numeric_limits<double>::infinity()}, {}, kAscii), "(no values)\n");
  EXPECT_EQ(text_plot({}, {.title = "t"}, kAscii), "t\n(no values)\n");
}

}  // namespace
}  // namespace flotilla
