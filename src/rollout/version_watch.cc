#include "rollout/version_watch.h"

#include <malloc.h>

namespace flotilla {

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
  const std::lock_guard lock(mutex_);
  FLOTILLA_CHECK(taken_);
  loaded_ = true;
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

void VersionWatch::watch(const std::stop_token& stop) {
  do {
    hold_what_is_loaded();
    const auto head = retrier_.run("get", "head", stop, [this] { return subscriber_.poll(); });
    if (!head.ok()) return;
    {
      const std::lock_guard lock(mutex_);
      head_ = *head;
    }
    if (!options_.fetch || head->version == newest_ || stop.stop_requested()) continue;
    {
      // Nobody may change what is held while the new version is made out of it.
      const std::lock_guard lock(mutex_);
      if (taken_) continue;
      fetched_.reset();
    }
    const auto begin = clock_.monotonic();
    auto pulled = retrier_.run("get", "weights", stop, [this] { return subscriber_.pull(); });
    if (!pulled.ok()) return;
    newest_ = head->version;
    const std::lock_guard lock(mutex_);
    if (*pulled) fetched_ = {**std::move(pulled), clock_.monotonic() - begin};
  } while (wait_unless_stopped(stop, options_.poll));
}

}  // namespace flotilla
