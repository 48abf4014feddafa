#include "store/change_watch.h"

#include <utility>

namespace flotilla {

ChangeWatch::ChangeWatch(Ask ask) : ask_(std::move(ask)) {
  thread_ = std::jthread([this](const std::stop_token& stop) { work(stop); });
}

ChangeWatch::~ChangeWatch() {
  thread_.request_stop();
  thread_.join();
}

Result<std::optional<Object>> ChangeWatch::wait(const ETag& known, const Watching& watching) {
  std::unique_lock lock(mutex_);
  const auto is_there = [&] { return answer_ && answer_->known == known; };
  look_ = watching.look;
  if (!is_there()) {
    answer_.reset();
    wanted_ = known;
    changed_.notify_all();
  }
  ++waiting_;
  const bool there = changed_.wait_for(lock, watching.stop, watching.time, is_there);
  --waiting_;
  if (there) return std::exchange(answer_, std::nullopt)->result;
  if (watching.stop.stop_requested()) return cancelled("asked to stop");
  return std::optional<Object>();
}

void ChangeWatch::work(const std::stop_token& stop) {
  std::optional<ETag> last;
  std::chrono::steady_clock::time_point asked;
  std::unique_lock lock(mutex_);
  // The wait says what it was for, even when it was asked to stop.
  while (changed_.wait(lock, stop, [this] { return wanted_.has_value(); }) && !stop.stop_requested()) {
    const ETag known = *wanted_;
    if (last == known) changed_.wait_until(lock, stop, asked + look_, [&] { return wanted_ != known; });
    if (wanted_ != known || stop.stop_requested()) continue;
    last = known;
    asked = std::chrono::steady_clock::now();
    lock.unlock();
    auto result = ask_(known, stop);
    lock.lock();
    const bool news = result.ok() ? result->has_value() : waiting_ > 0;
    if (wanted_ == known && (news || waiting_ == 0)) wanted_.reset();
    if (!news) continue;
    answer_ = Answer{known, std::move(result)};
    changed_.notify_all();
  }
}

}  // namespace flotilla
