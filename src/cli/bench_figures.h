#pragma once

#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/status.h"

namespace flotilla {

// "AMD EPYC, 2 cores"
std::string machine_name();
// This process's, as it was given.
std::string command_line();

// A measured figure and what it should not exceed, as a line of a table and as an entry of the figures' file.
struct BoundedFigure {
  std::string name;
  double value = 0;
  std::string unit;
  double goal = 0;
  std::vector<std::pair<std::string, double>> parts;  // of the value, in the same unit
};
void print_figure(const BoundedFigure& figure);
// No file for an empty path.
Status write_figure(const BoundedFigure& figure, const std::string& path);

}  // namespace flotilla
