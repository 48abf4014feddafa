#include "rollout/version_watch.h"

#include <malloc.h>

#include <utility>

namespace flotilla {
namespace {

constexpr std::chrono::seconds kLookTime{20};  // for head to move

}  // namespace

VersionWatch::VersionWatch(Subscriber& subscriber, Version held, Options options, EventSink& events, const Clock& clock)
    : subscriber_(subscriber),
      options_(options),
      clock_(clock),
      retrier_(options.retry, options.seed, events, clock),
      newest_(held) {
  thread_ = std::jthread([this](const std::stop_token& stop) { work(stop); });
}

VersionWatch::~VersionWatch() {
  thread_.request_stop();
  thread_.join();
  hold_what_is_loaded();
}

std::optional<VersionWatch::Fetched> VersionWatch::take() {
  const std::lock_guard lock(mutex_);
  taken_ = taken_ || fetched_;
  return std::exchange(fetched_, std::nullopt);
}

void VersionWatch::loaded() {
  std::stop_source wake;
  {
    const std::lock_guard lock(mutex_);
    FLOTILLA_CHECK(taken_);
    loaded_ = true;
    wake = wake_;
    changed_.notify_all();
  }
  wake.request_stop();
}

void VersionWatch::hold_what_is_loaded() {
  {
    const std::lock_guard lock(mutex_);
    if (!loaded_) return;
    loaded_ = taken_ = false;
  }
  subscriber_.hold();
  malloc_trim(0);  // else the allocator keeps what the version was made of
}

std::optional<Head> VersionWatch::head() const {
  const std::lock_guard lock(mutex_);
  return head_;
}

void VersionWatch::work(const std::stop_token& stop) {
  watch(stop);
  const std::lock_guard lock(mutex_);
  head_.reset();
}

// Ends early when what was taken is loaded: cancelled.
Result<Head> VersionWatch::look(const std::stop_token& stop, std::chrono::milliseconds time) {
  std::stop_source wake;
  {
    const std::lock_guard lock(mutex_);
    if (loaded_) return cancelled("a version is loaded");
    wake_ = wake;
  }
  const std::stop_callback ends(stop, [&wake] { wake.request_stop(); });
  const Watching watching{.time = time, .look = options_.poll, .stop = wake.get_token()};
  return retrier_.run("get", "head", wake.get_token(), [&] { return subscriber_.poll(watching); });
}

void VersionWatch::watch(const std::stop_token& stop) {
  std::chrono::milliseconds time{0};
  while (!stop.stop_requested()) {
    hold_what_is_loaded();
    const auto head = look(stop, std::exchange(time, {}));
    std::unique_lock lock(mutex_);
    if (head.status().code() == StatusCode::kCancelled && loaded_) continue;
    if (!head.ok()) return;
    time = kLookTime;
    head_ = *head;
    if (!options_.fetch || head->version == newest_) continue;
    // Nobody may change what is held while the new version is made out of it.
    if (!taken_) {
      fetched_.reset();
      lock.unlock();
      auto pulled = retrier_.run("get", "weights", stop, [this] { return subscriber_.pull(); });
      if (!pulled.ok()) return;
      newest_ = head->version;
      lock.lock();
      if (*pulled) fetched_ = {**std::move(pulled), clock_.monotonic()};
    }
    // Mostly it takes one forward call until it is loaded.
    changed_.wait_for(lock, stop, options_.poll, [this] { return loaded_; });
    time = {};
  }
}

}  // namespace flotilla
