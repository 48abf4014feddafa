#include "rollout/wish.h"

#include <algorithm>

#include <fmt/format.h>

namespace flotilla {

std::int64_t Wish::take(const Head& head, std::int64_t room, std::chrono::nanoseconds now) {
  if (!head_ || head_->version != head.version) largest_ = made_ = 0;
  if (!head_ || *head_ != head) changed_ = now;
  head_ = head;
  if (head.state == RunState::kPaused) return wait_for("the run is paused");
  if (head.state == RunState::kFinished) return wait_for("the run is finished");
  largest_ = std::max(largest_, head.wanted);
  if (head.wanted <= 0) return wait_for("the learner wants no groups at present");
  if (made_ >= largest_) {
    if (now - changed_ < patience_) {
      return wait_for(
          fmt::format("the learner to take the {} groups made with version {}", made_, head.version.value()));
    }
    made_ = 0;
    largest_ = head.wanted;
    changed_ = now;
  }
  const std::int64_t groups = std::min({room, head.wanted, largest_ - made_});
  if (groups <= 0) return wait_for("room in the upload queue");
  made_ += groups;
  return groups;
}

std::int64_t Wish::wait_for(std::string reason) {
  reason_ = std::move(reason);
  return 0;
}

}  // namespace flotilla
