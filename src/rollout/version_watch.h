#pragma once

#include <chrono>
#include <cstdint>
#include <mutex>
#include <optional>
#include <thread>

#include "base/clock.h"
#include "rollout/retry.h"
#include "sync/head.h"
#include "sync/subscriber.h"
#include "telemetry/event_sink.h"

namespace flotilla {

// Looks at the hub beside a sweep, on a thread of its own, and fetches and applies new versions where it is asked to:
// the sweep asks between two forward calls and never waits. While the object lives, the subscriber is its own. An error
// that stays ends the watch without a word and takes its head away, so that no group is added to the sweep: whoever
// looks at the hub after it meets the error too.
class VersionWatch {
 public:
  struct Options {
    bool fetch = false;  // new versions, or look at `head` only
    std::chrono::milliseconds poll{1'000};
    RetryPolicy retry;
    std::uint64_t seed = 0;  // of the pauses' jitter
  };
  struct Fetched {
    PulledVersion version;
    std::chrono::nanoseconds duration{0};  // fetch, decode and check
  };

  // `held`: the newest version that is known. All outlive the watch.
  VersionWatch(Subscriber& subscriber, Version held, Options options, EventSink& events, const Clock& clock);
  // Waits for the operation that is under way; its version is what the subscriber holds then.
  ~VersionWatch() = default;
  VersionWatch(const VersionWatch&) = delete;
  VersionWatch& operator=(const VersionWatch&) = delete;

  // The newest version that was fetched, once. Thread safe.
  std::optional<Fetched> take();
  // As last read; none before the first time and after the watch has ended. Thread safe.
  std::optional<Head> head() const;

 private:
  void work(const std::stop_token& stop);
  void watch(const std::stop_token& stop);

  Subscriber& subscriber_;
  const Options options_;
  const Clock& clock_;
  Retrier retrier_;
  Version newest_;  // of the thread below

  mutable std::mutex mutex_;  // for the two below
  std::optional<Head> head_;
  std::optional<Fetched> fetched_;

  std::jthread thread_;
};

}  // namespace flotilla
