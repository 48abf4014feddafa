#include "rollout/wish.h"

#include <algorithm>

#include <fmt/format.h>

namespace flotilla {

std::int64_t Wish::take(const Head& head, std::int64_t room, std::int64_t uploaded, std::chrono::nanoseconds now) {
  if (uploads_.empty() || uploads_.back().total != uploaded) uploads_.push_back({now, uploaded});
  if (head_ && head_->version != head.version) {
    counted_ = made_;
  } else if (head_ && head.wanted < head_->wanted) {
    counted_ = std::max(counted_, std::min(uploaded, counted_ + head_->wanted - head.wanted));
  }
  while (!uploads_.empty() && now - uploads_.front().seen >= patience_) {
    counted_ = std::max(counted_, uploads_.front().total);
    // The last one stays: it says what is known already.
    if (uploads_.size() == 1) break;
    uploads_.pop_front();
  }
  head_ = head;
  if (head.state == RunState::kPaused) return wait_for("the run is paused");
  if (head.state == RunState::kFinished) return wait_for("the run is finished");
  if (head.wanted <= 0) return wait_for("the learner wants no groups at present");
  if (room <= 0) return wait_for("room in the upload queue");
  const std::int64_t uncounted = made_ - counted_;
  const std::int64_t groups = std::min(room, head.wanted - uncounted);
  if (groups <= 0) {
    return wait_for(fmt::format("the learner to count the groups made with version {}", head.version.value()));
  }
  made_ += groups;
  return groups;
}

std::int64_t Wish::wait_for(std::string reason) {
  reason_ = std::move(reason);
  return 0;
}

}  // namespace flotilla
