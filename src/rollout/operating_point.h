#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/ids.h"

namespace flotilla {

// How many groups a worker sweeps together, chosen from its own sweeps: the smallest number at the peak of episodes an
// hour whose sweep still ends within one publish interval. More groups a sweep use the machine better, up to a point;
// fewer keep episodes fresh, because weights are swapped in between sweeps.
//
// It measures 1, 2, 4, ... groups upwards while each doubling pays and fits the interval, settles, and measures the
// neighbours again from time to time, because machines and episodes change. Pure: time is an argument.
class OperatingPoint {
 public:
  // `most` >= 1: what memory allows.
  explicit OperatingPoint(std::int64_t most);

  // Groups to sweep next, 1 to `most`.
  std::int64_t groups() const;

  // A sweep of `groups` has ended. One of another number than groups() (the learner wished for fewer) counts for the
  // number it had, if that is a power of two.
  void add(std::int64_t groups, std::int64_t episodes, std::chrono::nanoseconds duration);

  // The worker has seen this version as the newest.
  void see(Version newest, std::chrono::nanoseconds now);

 private:
  struct Size {
    std::int64_t groups;
    int sweeps = 0;      // that were measured
    double seconds = 0;  // a sweep, moving average
    double rate = 0;     // episodes a second, moving average
  };
  bool fits(std::size_t size, double seconds) const;
  void choose();

  std::vector<Size> sizes_;
  std::size_t current_ = 0;
  int settled_sweeps_ = 0;  // since the last look at the neighbours
  double interval_ = 0;     // seconds between two versions; 0: not known yet
  std::optional<Version> seen_;
  std::chrono::nanoseconds seen_at_{0};
};

}  // namespace flotilla
