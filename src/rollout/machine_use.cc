#include "rollout/machine_use.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <vector>

#include "base/files.h"

namespace flotilla {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view kBlanks = " \t";

std::optional<std::string> text_of(const fs::path& path) {
  auto text = read_text_file(path);
  return text.ok() ? std::optional(*std::move(text)) : std::nullopt;
}

template <typename T>
std::optional<T> number_of(std::string_view word) {
  T number{};
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), number);
  return error == std::errc() && end == word.data() + word.size() ? std::optional(number) : std::nullopt;
}

std::vector<std::string_view> words_of(std::string_view line) {
  std::vector<std::string_view> words;
  while (true) {
    line.remove_prefix(std::min(line.find_first_not_of(kBlanks), line.size()));
    if (line.empty()) return words;
    words.push_back(line.substr(0, line.find_first_of(kBlanks)));
    line.remove_prefix(words.back().size());
  }
}

// Takes the first line off the text.
std::string_view next_line(std::string_view& text) {
  const std::string_view line = text.substr(0, text.find('\n'));
  text.remove_prefix(std::min(line.size() + 1, text.size()));
  return line;
}

std::optional<double> cores_in(std::string_view stat) {
  double cores = 0;
  while (!stat.empty()) {
    const std::string_view line = next_line(stat);
    cores += line.size() > 3 && line.starts_with("cpu") && line[3] >= '0' && line[3] <= '9';
  }
  return cores > 0 ? std::optional(cores) : std::nullopt;
}

// Where this process is in the hierarchy of version 2: "0::/PATH".
fs::path group_in(std::string_view text) {
  while (!text.empty()) {
    if (const std::string_view line = next_line(text); line.starts_with("0::/"))
      return fs::path(line.substr(4)).relative_path();
  }
  return {};
}

// "max" is no limit.
std::optional<std::uint64_t> limit_in(const fs::path& path) {
  std::string text = text_of(path).value_or("");
  if (text.ends_with('\n')) text.pop_back();
  return number_of<std::uint64_t>(text);
}

// Counters of the same process may seem to go back by a tick.
std::optional<double> rise(std::optional<std::uint64_t> before, std::optional<std::uint64_t> now) {
  if (!before || !now) return std::nullopt;
  return *now > *before ? static_cast<double>(*now - *before) : 0;
}

}  // namespace

std::optional<std::uint64_t> ordinary_ticks(std::string_view stat) {
  // cpu user nice system idle iowait irq softirq ...
  const auto words = words_of(next_line(stat));
  if (words.size() < 8 || words[0] != "cpu") return std::nullopt;
  std::uint64_t sum = 0;
  for (const std::size_t field : {1, 3, 6, 7}) {
    const auto ticks = number_of<std::uint64_t>(words[field]);
    if (!ticks) return std::nullopt;
    sum += *ticks;
  }
  return sum;
}

std::optional<ProcessStat> parse_process_stat(std::string_view stat) {
  // The second field is the program's name in brackets, which may hold anything.
  const std::size_t name_end = stat.rfind(')');
  if (name_end == std::string_view::npos) return std::nullopt;
  stat.remove_prefix(name_end + 1);
  const auto words = words_of(next_line(stat));
  constexpr std::size_t kFirst = 3;  // number of the first field behind the name, as proc(5) counts
  constexpr std::size_t kPolicy = 41;
  if (words.size() <= kPolicy - kFirst) return std::nullopt;
  const auto user = number_of<std::uint64_t>(words[14 - kFirst]);
  const auto system = number_of<std::uint64_t>(words[15 - kFirst]);
  const auto nice = number_of<std::int64_t>(words[19 - kFirst]);
  const auto start = number_of<std::uint64_t>(words[22 - kFirst]);
  const auto policy = number_of<std::uint64_t>(words[kPolicy - kFirst]);
  if (!user || !system || !nice || !start || !policy) return std::nullopt;
  return ProcessStat{*user, *system, *nice, *start, *policy};
}

std::optional<std::uint64_t> pressure_total(std::string_view pressure) {
  while (!pressure.empty()) {
    const auto words = words_of(next_line(pressure));
    if (words.empty() || words[0] != "some") continue;
    constexpr std::string_view kTotal = "total=";
    for (const std::string_view word : words) {
      if (word.starts_with(kTotal)) return number_of<std::uint64_t>(word.substr(kTotal.size()));
    }
  }
  return std::nullopt;
}

std::optional<std::uint64_t> number_behind(std::string_view text, std::string_view name) {
  while (!text.empty()) {
    const auto words = words_of(next_line(text));
    if (words.size() >= 2 && words[0] == name) return number_of<std::uint64_t>(words[1]);
  }
  return std::nullopt;
}

MachineUseReader::MachineUseReader(fs::path proc, fs::path control_groups)
    : proc_(std::move(proc)),
      control_groups_(std::move(control_groups)),
      group_(group_in(text_of(proc_ / "self/cgroup").value_or(""))) {}

MachineUse MachineUseReader::look(std::chrono::nanoseconds now) {
  MachineUse use{.time = now};
  Totals totals{.time = now};
  const std::string stat = text_of(proc_ / "stat").value_or("");
  use.cores = cores_in(stat);
  count_background();
  if (const auto ticks = ordinary_ticks(stat)) {
    totals.foreground_ticks = *ticks > background_ticks_ ? *ticks - background_ticks_ : 0;
  }
  totals.cpu_pressure = pressure_total(text_of(proc_ / "pressure/cpu").value_or(""));
  totals.memory_pressure = pressure_total(text_of(proc_ / "pressure/memory").value_or(""));
  totals.group_pressure = pressure_total(text_of(control_groups_ / group_ / "memory.pressure").value_or(""));
  use.memory_free = memory_free();
  if (before_ && now > before_->time) {
    const double seconds = std::chrono::duration<double>(now - before_->time).count();
    const auto share = [&](std::optional<double> microseconds) -> std::optional<double> {
      return microseconds ? std::optional(std::min(1.0, *microseconds * 1e-6 / seconds)) : std::nullopt;
    };
    if (const auto ticks = rise(before_->foreground_ticks, totals.foreground_ticks)) {
      use.foreground = *ticks / static_cast<double>(sysconf(_SC_CLK_TCK)) / seconds;
    }
    use.waiting_for_cpu = share(rise(before_->cpu_pressure, totals.cpu_pressure));
    const auto machine = share(rise(before_->memory_pressure, totals.memory_pressure));
    const auto group = share(rise(before_->group_pressure, totals.group_pressure));
    use.waiting_for_memory = machine && group ? std::max(*machine, *group) : machine ? machine : group;
  }
  before_ = totals;
  return use;
}

// Adds what this process, niced ones and idle ones have spent since the look before of the time that ordinary_ticks()
// counts.
void MachineUseReader::count_background() {
  const bool first = !before_;
  const auto self = text_of(proc_ / "self/stat");
  const std::string own = self ? self->substr(0, self->find(' ')) : "";
  std::map<std::string, Process> processes;
  std::error_code error;
  for (fs::directory_iterator entry(proc_, error), end; !error && entry != end; entry.increment(error)) {
    const std::string name = entry->path().filename();
    if (name.empty() || name[0] < '0' || name[0] > '9') continue;
    const auto text = text_of(entry->path() / "stat");
    const auto stat = text ? parse_process_stat(*text) : std::nullopt;
    if (!stat) continue;
    const Process process{stat->start, stat->system_ticks + (stat->nice > 0 ? 0 : stat->user_ticks)};
    const auto known = processes_.find(name);
    const bool same = known != processes_.end() && known->second.start == process.start;
    const std::uint64_t before = same ? known->second.ticks : first ? process.ticks : 0;
    const bool background = name == own || stat->nice > 0 || stat->policy == SCHED_IDLE;
    if (background && process.ticks > before) background_ticks_ += process.ticks - before;
    processes.emplace(name, process);
  }
  processes_ = std::move(processes);
}

std::optional<double> MachineUseReader::memory_free() const {
  std::optional<double> free;
  const auto consider = [&](double available, double total) {
    const double share = std::clamp(available / total, 0.0, 1.0);
    free = free ? std::min(*free, share) : share;
  };
  const std::string machine = text_of(proc_ / "meminfo").value_or("");
  const auto total = number_behind(machine, "MemTotal:");
  const auto available = number_behind(machine, "MemAvailable:");
  if (total && *total > 0 && available) consider(static_cast<double>(*available), static_cast<double>(*total));
  // A group has the limits of those around it, too.
  for (fs::path group = group_;; group = group.parent_path()) {
    const fs::path folder = control_groups_ / group;
    const auto most = limit_in(folder / "memory.max"), high = limit_in(folder / "memory.high");
    const auto used = limit_in(folder / "memory.current");
    if ((most || high) && used) {
      const auto limit = static_cast<double>(std::min(most.value_or(UINT64_MAX), high.value_or(UINT64_MAX)));
      // What is cached from files can be had back.
      const std::string stat = text_of(folder / "memory.stat").value_or("");
      const double cached = static_cast<double>(number_behind(stat, "active_file").value_or(0)) +
                            static_cast<double>(number_behind(stat, "inactive_file").value_or(0));
      consider(limit - std::max(0.0, static_cast<double>(*used) - cached), std::max(limit, 1.0));
    }
    if (group.empty()) return free;
  }
}

}  // namespace flotilla
