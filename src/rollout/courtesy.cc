#include "rollout/courtesy.h"

#include <algorithm>
#include <cmath>

namespace flotilla {
namespace {

using std::chrono::nanoseconds;
using std::chrono::seconds;

constexpr double kAverageSeconds = 3;  // of the foreground load: a moment's work of a daemon is none
// Of the cores, for a polite worker. A compile with one job takes half of two cores; an idle desktop some hundredths.
constexpr double kForeground = 0.1;
constexpr double kForegroundCalm = 0.05;
constexpr double kCrowded = 0.25;  // cores that are missing, for a normal worker
constexpr double kCrowdedCalm = 0.1;
constexpr double kWaiting = 0.2;     // of the time a task waits for a core; judged by where the load is not known
constexpr double kPoliteTime = 0.1;  // even a program that stands still meanwhile loses no more
constexpr double kNormalTime = 0.5;
constexpr seconds kTimeCalm{4};      // until the share of time doubles
constexpr seconds kLongestRest{60};  // however long a forward call took: enough for a tenth after calls of 6 seconds

constexpr double kStalled = 0.1;  // of the time a task waits for memory
constexpr double kStalledCalm = 0.02;
constexpr double kFree = 0.06;  // of the memory is left
constexpr double kFreeCalm = 0.12;
constexpr seconds kMemoryStep{2};           // a halving takes a moment to show
constexpr double kLeastMemory = 1.0 / 256;  // one group of the largest sweep
constexpr seconds kMemoryCalm{30};          // until the groups double, when pressure has not come back of late
constexpr seconds kMemoryCalmMost{960};

}  // namespace

Courtesy::Courtesy(Politeness politeness, int threads)
    : politeness_(politeness), threads_(threads), memory_patience_(kMemoryCalm) {}

void Courtesy::see(const MachineUse& use) {
  if (seen_ && use.time <= *seen_) return;
  cores_ = use.cores.value_or(cores_);
  // Without the load, what waits for a core is the next best sign of it, though this worker is among the waiting.
  std::optional<double> load = use.foreground;
  if (!load && use.waiting_for_cpu) load = *use.waiting_for_cpu > kWaiting ? cores_ : 0;
  if (load) {
    const double passed = std::chrono::duration<double>(use.time - seen_.value_or(nanoseconds{0})).count();
    const double weight = 1 - std::exp(-passed / kAverageSeconds);
    foreground_ = foreground_.value_or(0) + weight * (*load - foreground_.value_or(0));
  } else {
    foreground_.reset();
  }
  seen_ = use.time;
  limit_time(use.time);
  limit_memory(memory_press(use), use.time);
}

Courtesy::Press Courtesy::processor_press() const {
  const double load = foreground_.value_or(0);
  const auto press = [](double value, double too_much, double calm) {
    return value > too_much ? Press::kTooMuch : value > calm ? Press::kSome : Press::kNone;
  };
  switch (politeness_) {
    case Politeness::kPolite: return press(load / cores_, kForeground, kForegroundCalm);
    case Politeness::kNormal: return press(load + std::min<double>(threads_, cores_) - cores_, kCrowded, kCrowdedCalm);
    case Politeness::kGreedy: break;
  }
  return Press::kNone;
}

Courtesy::Press Courtesy::memory_press(const MachineUse& use) const {
  const double stalled = use.waiting_for_memory.value_or(0), free = use.memory_free.value_or(1);
  if (stalled > kStalled || free < kFree) return Press::kTooMuch;
  return stalled > kStalledCalm || free < kFreeCalm ? Press::kSome : Press::kNone;
}

void Courtesy::limit_time(nanoseconds now) {
  const Press press = processor_press();
  if (press == Press::kTooMuch) time_share_ = politeness_ == Politeness::kPolite ? kPoliteTime : kNormalTime;
  if (press != Press::kNone || time_share_ == 1) time_calm_since_ = now;
  if (now - time_calm_since_ < kTimeCalm) return;
  time_share_ = std::min(1.0, 2 * time_share_);
  time_calm_since_ = now;
}

void Courtesy::limit_memory(Press press, nanoseconds now) {
  if (press != Press::kNone) memory_calm_since_ = now;
  const nanoseconds calm = now - memory_calm_since_;
  if (press == Press::kTooMuch && memory_share_ > kLeastMemory &&
      (!memory_changed_ || now - *memory_changed_ >= kMemoryStep)) {
    if (memory_grew_) memory_patience_ = std::min<nanoseconds>(2 * memory_patience_, kMemoryCalmMost);
    memory_grew_ = false;
    memory_share_ /= 2;
    memory_changed_ = now;
  } else if (memory_share_ < 1 && calm >= memory_patience_) {
    memory_grew_ = true;
    memory_share_ *= 2;
    memory_changed_ = memory_calm_since_ = now;
  } else if (memory_share_ == 1 && calm >= kMemoryCalmMost) {
    memory_grew_ = false;
    memory_patience_ = kMemoryCalm;
  }
}

std::int64_t Courtesy::next_groups(std::int64_t groups) const {
  const double share = std::min(time_share_, memory_share_);
  return std::max<std::int64_t>(1, static_cast<std::int64_t>(share * static_cast<double>(groups)));
}

std::int64_t Courtesy::resident_groups(std::int64_t groups) const {
  if (memory_share_ == 1) return kAnyNumber;
  return std::max<std::int64_t>(1, static_cast<std::int64_t>(memory_share_ * static_cast<double>(groups)));
}

nanoseconds Courtesy::rest_after(nanoseconds busy) const {
  if (time_share_ == 1 || busy.count() <= 0) return nanoseconds{0};
  const double rest = static_cast<double>(busy.count()) * (1 / time_share_ - 1);
  return std::min<nanoseconds>(nanoseconds(static_cast<std::int64_t>(std::min(rest, 1e18))), kLongestRest);
}

}  // namespace flotilla
