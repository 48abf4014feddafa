#pragma once

#include <chrono>
#include <cstdint>
#include <limits>
#include <optional>

#include "config/run_config.h"
#include "rollout/machine_use.h"

namespace flotilla {

// How much of its machine a worker takes beside the machine's owner. It looks at the machine about once a second:
//
// - Foreground load. A polite worker computes a tenth of the time as soon as others take more than a tenth of the
//   cores, whether or not these leave cores free: a neighbour on the same core or memory bus slows them down as well. A
//   normal one computes half the time while the cores do not suffice for both. When the load has ended, the share of
//   time doubles every few seconds. The next sweep is as much smaller, so that it does not take ten times as long.
// - Memory pressure: tasks wait for memory, or little is left, in the machine or the control group. Each worker, greedy
//   ones too, halves its groups, those of the sweep under way included, until the pressure ends or one is left. They
//   double again after a while without pressure; when that brings the pressure back, the next while is twice as long.
//
// Pure: what is seen comes in, limits come out. What a look does not know limits nothing.
class Courtesy {
 public:
  Courtesy(Politeness politeness, int threads);

  void see(const MachineUse& use);

  // Where an unlimited sweep has `groups`: groups of the next sweep, 1 to `groups`; and those that may be in flight in
  // any sweep, at least as many, kAnyNumber while memory is no limit.
  static constexpr std::int64_t kAnyNumber = std::numeric_limits<std::int64_t>::max();
  std::int64_t next_groups(std::int64_t groups) const;
  std::int64_t resident_groups(std::int64_t groups) const;
  // How long to rest after computing for `busy`.
  std::chrono::nanoseconds rest_after(std::chrono::nanoseconds busy) const;

  // Shares in (0, 1]: of the time, and of the groups. 1 and 1: nothing is limited.
  double time_share() const { return time_share_; }
  double memory_share() const { return memory_share_; }

 private:
  enum class Press { kNone, kSome, kTooMuch };  // kSome: neither limits more nor counts as calm
  Press processor_press() const;
  Press memory_press(const MachineUse& use) const;
  void limit_time(std::chrono::nanoseconds now);
  void limit_memory(Press press, std::chrono::nanoseconds now);

  const Politeness politeness_;
  const int threads_;
  std::optional<std::chrono::nanoseconds> seen_;  // time of the last look

  double cores_ = 1;
  std::optional<double> foreground_;  // cores, averaged over some seconds
  double time_share_ = 1;
  std::chrono::nanoseconds time_calm_since_{0};

  double memory_share_ = 1;
  std::chrono::nanoseconds memory_calm_since_{0};
  std::optional<std::chrono::nanoseconds> memory_changed_;
  std::chrono::nanoseconds memory_patience_;  // calm before the groups double
  bool memory_grew_ = false;                  // since the last pressure
};

}  // namespace flotilla
