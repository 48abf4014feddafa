#include "learn/learner_control.h"

namespace flotilla {

void LearnerControl::ask(Request request) {
  const std::scoped_lock lock(mutex_);
  if (static_cast<int>(request) > static_cast<int>(request_)) request_ = request;
  ++changes_;
  changed_.notify_all();
}

void LearnerControl::pause(bool paused) {
  const std::scoped_lock lock(mutex_);
  paused_ = paused;
  ++changes_;
  changed_.notify_all();
}

LearnerControl::Request LearnerControl::request() const {
  const std::scoped_lock lock(mutex_);
  return request_;
}

bool LearnerControl::paused() const {
  const std::scoped_lock lock(mutex_);
  return paused_;
}

void LearnerControl::wait(std::chrono::nanoseconds time) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, time, [&] { return changes_ != seen_; });
  seen_ = changes_;
}

void LearnerControl::wake() {
  const std::scoped_lock lock(mutex_);
  ++changes_;
  changed_.notify_all();
}

void LearnerControl::set_status(nlohmann::json status) {
  const std::scoped_lock lock(mutex_);
  status_ = std::move(status);
}

nlohmann::json LearnerControl::status() const {
  const std::scoped_lock lock(mutex_);
  nlohmann::json status = status_;
  status["paused"] = paused_;
  status["request"] = request_ == Request::kNone ? "none" : request_ == Request::kFinish ? "finish" : "leave";
  return status;
}

}  // namespace flotilla
