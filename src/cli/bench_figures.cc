#include "cli/bench_figures.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/files.h"
#include "base/thread_pool.h"

namespace flotilla {

using nlohmann::ordered_json;

std::string machine_name() {
  const auto info = read_text_file("/proc/cpuinfo");
  const std::size_t at = info.ok() ? info->find("model name") : std::string::npos;
  if (at == std::string::npos) return "unknown";
  const std::size_t begin = info->find(": ", at) + 2;
  return fmt::format("{}, {} cores", info->substr(begin, info->find('\n', begin) - begin), core_count());
}

std::string command_line() {
  const auto arguments = read_text_file("/proc/self/cmdline");
  if (!arguments.ok()) return "flotilla bench";
  std::string line = *arguments;
  while (line.ends_with('\0')) line.pop_back();
  std::ranges::replace(line, '\0', ' ');
  return "flotilla" + line.substr(std::min(line.find(' '), line.size()));
}

void print_figure(const BoundedFigure& figure) {
  for (const auto& [part, value] : figure.parts) fmt::print("  {:<50} {:>9.1f} {}\n", part, value, figure.unit);
  fmt::print("{:<52} {:>9.1f} {}, goal at most {:.1f}: {}\n", figure.name, figure.value, figure.unit, figure.goal,
             figure.value <= figure.goal ? "met" : "not met");
}

Status write_figure(const BoundedFigure& figure, const std::string& path) {
  if (path.empty()) return ok_status();
  ordered_json parts = ordered_json::object();
  for (const auto& [part, value] : figure.parts) parts[part] = value;
  const ordered_json entry = {{"figure", figure.name},
                              {"value", figure.value},
                              {"unit", figure.unit},
                              {"against", "the goal"},
                              {"ratio", figure.value / figure.goal},
                              {"goal", figure.goal},
                              {"met", figure.value <= figure.goal},
                              {"samples", {figure.value}},
                              {"parts", parts},
                              {"machine", machine_name()},
                              {"command", command_line()}};
  return write_file_atomically(path, ordered_json::array({entry}).dump(2) + "\n");
}

}  // namespace flotilla
