#include "telemetry/text_plot.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <vector>

#include <fmt/format.h>

namespace flotilla {
namespace {

enum Cell : std::uint8_t { kEmpty, kFlat, kVertical, kUpFrom, kUpTo, kDownFrom, kDownTo };
// The line leaves a row upwards with kUpFrom and reaches the higher row with kUpTo; likewise down.
constexpr std::array<std::string_view, 7> kUnicode = {" ", "─", "│", "╯", "╭", "╮", "╰"};
constexpr std::array<std::string_view, 7> kAscii = {" ", "-", "|", "'", ".", ".", "'"};

constexpr int kLabelWidth = 9;  // "%8.3g " and the axis
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// One value a column: the mean of the finite values that fall on it.
std::vector<double> columns_of(std::span<const double> values, std::size_t width) {
  const std::size_t columns = std::min(values.size(), width);
  std::vector<double> means(columns, kNan);
  for (std::size_t column = 0; column < columns; ++column) {
    double sum = 0;
    int count = 0;
    for (std::size_t i = column * values.size() / columns; i < (column + 1) * values.size() / columns; ++i) {
      if (!std::isfinite(values[i])) continue;
      sum += values[i];
      ++count;
    }
    if (count > 0) means[column] = sum / count;
  }
  return means;
}

}  // namespace

std::string text_plot(std::span<const double> values, const TextPlotOptions& options, const Terminal& terminal) {
  const int height = std::max(options.height, 2);
  const auto width = static_cast<std::size_t>(std::max(terminal.width - kLabelWidth - 2, 10));
  const std::vector<double> columns = columns_of(values, width);

  std::string text;
  if (!options.title.empty()) text += fmt::format("{}\n", options.title);
  double low = std::numeric_limits<double>::infinity(), high = -low;
  for (const double value : columns) {
    if (std::isnan(value)) continue;
    low = std::min(low, value);
    high = std::max(high, value);
  }
  if (low > high) return text + "(no values)\n";
  if (low == high) {
    // A constant lies in the middle.
    const double margin = std::max(std::abs(low) * 0.1, 0.1);
    low -= margin;
    high += margin;
  }

  std::vector<std::vector<Cell>> rows(static_cast<std::size_t>(height), std::vector<Cell>(columns.size(), kEmpty));
  const auto row_of = [&](double value) {
    return static_cast<std::size_t>(std::lround((high - value) / (high - low) * (height - 1)));
  };
  double before = kNan;
  for (std::size_t x = 0; x < columns.size(); ++x) {
    if (std::isnan(columns[x])) continue;
    const std::size_t to = row_of(columns[x]);
    const std::size_t from = std::isnan(before) ? to : row_of(before);
    if (from == to) {
      rows[to][x] = kFlat;
    } else {
      rows[from][x] = from > to ? kUpFrom : kDownFrom;
      rows[to][x] = from > to ? kUpTo : kDownTo;
      for (std::size_t row = std::min(from, to) + 1; row < std::max(from, to); ++row) rows[row][x] = kVertical;
    }
    before = columns[x];
  }

  const auto& symbols = terminal.unicode ? kUnicode : kAscii;
  for (int row = 0; row < height; ++row) {
    const double value = high - (high - low) * row / (height - 1);
    std::string line = fmt::format("{:>8.3g} {}", value, terminal.unicode ? "┤" : "|");
    for (const Cell cell : rows[static_cast<std::size_t>(row)]) line += symbols[cell];
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + '\n';
  }
  const double last = options.x_last != 0 ? options.x_last : options.x_first + static_cast<double>(values.size()) - 1;
  const std::string left = fmt::format("{} {:g}", options.x_name, options.x_first);
  const std::string right = fmt::format("{:g}", last);
  const std::size_t room =
      columns.size() > left.size() + right.size() ? columns.size() - left.size() - right.size() : 1;
  return text + std::string(kLabelWidth + 1, ' ') + left + std::string(room, ' ') + right + '\n';
}

}  // namespace flotilla
