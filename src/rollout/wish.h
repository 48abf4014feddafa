#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>

#include "sync/head.h"

namespace flotilla {

// How many groups a worker begins, by what the learner wishes for: `wanted` of head, less the worker's own groups that
// the learner may not have counted yet. A group counts as counted when the wish has fallen for it, when it was made
// with an older version, or `patience` after its upload (the wish may fall and rise again unseen). So a sequential
// learner gets exactly the groups of a step from a worker, and an asynchronous one keeps it busy. Pure: time is an
// argument.
class Wish {
 public:
  explicit Wish(std::chrono::nanoseconds patience) : patience_(patience) {}

  // Groups to begin now, at most `room`, which then count as made; 0 when there is something to wait for. `uploaded`:
  // of the groups made so far, never falls.
  std::int64_t take(const Head& head, std::int64_t room, std::int64_t uploaded, std::chrono::nanoseconds now);
  // Groups that take() gave and that were not begun.
  void give_back(std::int64_t groups) { made_ -= groups; }
  // What it waits for, after take() gave 0.
  const std::string& reason() const { return reason_; }

 private:
  struct Uploaded {
    std::chrono::nanoseconds seen;
    std::int64_t total;
  };
  std::int64_t wait_for(std::string reason);

  const std::chrono::nanoseconds patience_;
  std::optional<Head> head_;
  std::int64_t made_ = 0;
  std::int64_t counted_ = 0;  // of those made, oldest first
  std::deque<Uploaded> uploads_;
  std::string reason_;
};

}  // namespace flotilla
