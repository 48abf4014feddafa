#pragma once

#include <span>
#include <string>
#include <string_view>

#include "telemetry/terminal.h"

namespace flotilla {

struct TextPlotOptions {
  int height = 10;              // rows of the plot itself; at least 2
  double x_first = 1;           // x of the first value, for the labels below
  double x_last = 0;            // x of the last value; 0: x_first + number of values - 1
  std::string_view title = {};  // above the plot; empty: none
  std::string_view x_name = "step";
};

// A line plot of the values in order, each line ended by a line feed. When there are more values than columns, a column
// shows the mean of its values. Values that are not finite are left out; without any other the plot says so.
std::string text_plot(std::span<const double> values, const TextPlotOptions& options, const Terminal& terminal);

}  // namespace flotilla
