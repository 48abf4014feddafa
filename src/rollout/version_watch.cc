#include "rollout/version_watch.h"

namespace flotilla {

VersionWatch::VersionWatch(Subscriber& subscriber, Version held, Options options, EventSink& events, const Clock& clock)
    : subscriber_(subscriber),
      options_(options),
      clock_(clock),
      retrier_(options.retry, options.seed, events, clock),
      newest_(held) {
  thread_ = std::jthread([this](const std::stop_token& stop) { work(stop); });
}

std::optional<VersionWatch::Fetched> VersionWatch::take() {
  const std::lock_guard lock(mutex_);
  return std::exchange(fetched_, std::nullopt);
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
    const auto head = retrier_.run("get", "head", stop, [this] { return subscriber_.poll(); });
    if (!head.ok()) return;
    {
      const std::lock_guard lock(mutex_);
      head_ = *head;
    }
    if (!options_.fetch || head->version == newest_ || stop.stop_requested()) continue;
    const auto begin = clock_.monotonic();
    auto pulled = retrier_.run("get", "weights", stop, [this] { return subscriber_.pull(); });
    if (!pulled.ok()) return;
    newest_ = pulled->version;
    const std::lock_guard lock(mutex_);
    fetched_ = {*std::move(pulled), clock_.monotonic() - begin};
  } while (wait_unless_stopped(stop, options_.poll));
}

}  // namespace flotilla
