#include "rollout/operating_point.h"

#include <algorithm>

#include "base/status.h"

namespace flotilla {
namespace {

constexpr int kSweeps = 2;        // that say how fast a size is
constexpr int kLookAgain = 16;    // sweeps at the chosen size before its neighbours are measured again
constexpr double kWeight = 0.3;   // of a new sweep in the averages
constexpr double kAtPeak = 0.97;  // of the highest rate: less is noise

void average(double& mean, double value, bool first) { mean = first ? value : mean + kWeight * (value - mean); }

}  // namespace

OperatingPoint::OperatingPoint(std::int64_t most) {
  FLOTILLA_CHECK(most >= 1);
  for (std::int64_t groups = 1; groups <= most; groups *= 2) sizes_.push_back({.groups = groups});
}

std::int64_t OperatingPoint::groups() const { return sizes_[current_].groups; }

void OperatingPoint::add(std::int64_t groups, std::int64_t episodes, std::chrono::nanoseconds duration) {
  const auto size = std::ranges::find(sizes_, groups, &Size::groups);
  if (size == sizes_.end() || duration.count() <= 0) return;
  const double seconds = std::chrono::duration<double>(duration).count();
  average(size->seconds, seconds, size->sweeps == 0);
  average(size->rate, static_cast<double>(episodes) / seconds, size->sweeps == 0);
  ++size->sweeps;
  choose();
}

void OperatingPoint::see(Version newest, std::chrono::nanoseconds now) {
  if (newest == seen_) return;
  if (seen_ && newest > *seen_) {
    const double versions = static_cast<double>(newest.value() - seen_->value());
    average(interval_, std::chrono::duration<double>(now - seen_at_).count() / versions, interval_ == 0);
  }
  seen_ = newest;
  seen_at_ = now;
}

bool OperatingPoint::fits(std::size_t size, double seconds) const {
  return size == 0 || interval_ == 0 || seconds <= interval_;
}

void OperatingPoint::choose() {
  if (sizes_[current_].sweeps < kSweeps) return;
  const auto measured = [&](std::size_t i) { return sizes_[i].sweeps >= kSweeps; };
  double peak = 0;
  for (std::size_t i = 0; i < sizes_.size(); ++i) {
    if (measured(i) && fits(i, sizes_[i].seconds)) peak = std::max(peak, sizes_[i].rate);
  }
  std::size_t best = 0;
  while (!(measured(best) && fits(best, sizes_[best].seconds) && sizes_[best].rate >= kAtPeak * peak)) {
    if (++best == sizes_.size()) {
      best = 0;  // nothing that was measured fits
      break;
    }
  }
  if (best == current_ && ++settled_sweeps_ == kLookAgain) {
    settled_sweeps_ = 0;
    if (best > 0) sizes_[best - 1].sweeps = 0;
    if (best + 1 < sizes_.size()) sizes_[best + 1].sweeps = 0;
  }
  current_ = best;
  if (best > 0 && !measured(best - 1)) {
    current_ = best - 1;
  } else if (best + 1 < sizes_.size() && !measured(best + 1)) {
    // A doubling takes at most twice as long; how much longer the last one took says more.
    const double growth = best > 0 ? sizes_[best].seconds / sizes_[best - 1].seconds : 2;
    if (fits(best + 1, sizes_[best].seconds * std::min(growth, 2.0))) current_ = best + 1;
  }
}

}  // namespace flotilla
