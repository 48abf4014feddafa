#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "sync/head.h"

namespace flotilla {

// How many groups a worker begins, by what the learner wishes for (`wanted` of head). The learner's count lags behind
// what a worker has made, so a worker makes, with one version, at most as many as the largest wish that it saw with it.
// When head has not changed for `patience` after that (groups were lost, or another learner took over), it goes on.
// Pure: time is an argument.
class Wish {
 public:
  explicit Wish(std::chrono::nanoseconds patience) : patience_(patience) {}

  // Groups to begin now, at most `room`, which then count as made; 0 when there is something to wait for.
  std::int64_t take(const Head& head, std::int64_t room, std::chrono::nanoseconds now);
  // What it waits for, after take() gave 0.
  const std::string& reason() const { return reason_; }

 private:
  std::int64_t wait_for(std::string reason);

  const std::chrono::nanoseconds patience_;
  std::optional<Head> head_;
  std::chrono::nanoseconds changed_{0};
  std::int64_t largest_ = 0;  // wish with head_->version
  std::int64_t made_ = 0;     // with head_->version
  std::string reason_;
};

}  // namespace flotilla
