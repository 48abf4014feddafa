#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace flotilla {

// What this machine is doing besides this process. What the system does not say is absent.
struct MachineUse {
  std::chrono::nanoseconds time{0};            // of the look
  std::optional<double> cores{};               // that are online
  std::optional<double> foreground{};          // cores' worth of time that others took at ordinary priority
  std::optional<double> waiting_for_cpu{};     // share of the time in which some task waited for a core
  std::optional<double> waiting_for_memory{};  // the same for memory, in the machine or in this control group
  std::optional<double> memory_free{};         // share of the machine's or the control group's memory that is available
};

// Reads /proc and the control groups (version 2) from their files. A file that is absent or garbled says nothing. One
// thread; a look takes some milliseconds on a machine with hundreds of processes.
class MachineUseReader {
 public:
  explicit MachineUseReader(std::filesystem::path proc = "/proc",
                            std::filesystem::path control_groups = "/sys/fs/cgroup");

  // Rates are those since the look before, which the first one does not have.
  MachineUse look(std::chrono::nanoseconds now);

 private:
  struct Process {
    std::uint64_t start = 0;  // a number may be given out again
    std::uint64_t ticks = 0;
  };
  struct Totals {
    std::chrono::nanoseconds time{0};
    std::optional<std::uint64_t> foreground_ticks{};
    std::optional<std::uint64_t> cpu_pressure{};  // microseconds
    std::optional<std::uint64_t> memory_pressure{};
    std::optional<std::uint64_t> group_pressure{};
  };
  void count_background();
  std::optional<double> memory_free() const;

  const std::filesystem::path proc_;
  const std::filesystem::path control_groups_;
  std::filesystem::path group_;  // this process's, below control_groups_
  std::map<std::string, Process> processes_;
  std::uint64_t background_ticks_ = 0;
  std::optional<Totals> before_;
};

// The parsers; nullopt for what they do not understand.

// Of "cpu ..." in /proc/stat: ticks that all processes spent in programs without "nice", and in the system.
std::optional<std::uint64_t> ordinary_ticks(std::string_view stat);

// Of /proc/PID/stat.
struct ProcessStat {
  std::uint64_t user_ticks = 0;
  std::uint64_t system_ticks = 0;
  std::int64_t nice = 0;
  std::uint64_t start = 0;
  std::uint64_t policy = 0;
  bool operator==(const ProcessStat&) const = default;
};
std::optional<ProcessStat> parse_process_stat(std::string_view stat);

// Microseconds in which some task waited, of a file of /proc/pressure.
std::optional<std::uint64_t> pressure_total(std::string_view pressure);

// The number behind a name at the beginning of a line.
std::optional<std::uint64_t> number_behind(std::string_view text, std::string_view name);

}  // namespace flotilla
