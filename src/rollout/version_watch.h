#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <stop_token>
#include <thread>

#include "base/clock.h"
#include "rollout/retry.h"
#include "sync/head.h"
#include "sync/subscriber.h"
#include "telemetry/event_sink.h"

namespace flotilla {

// Looks at the hub beside a sweep, on a thread of its own, and fetches and checks new versions where it is asked to:
// the sweep asks between two forward calls and never waits. While the object lives, the subscriber is its own, and what
// is held stays as it is but for the time between take() and loaded(), in which nothing is fetched. An error that stays
// ends the watch without a word and takes its head away, so that no group is added to the sweep: whoever looks at the
// hub after it meets the error too.
class VersionWatch {
 public:
  struct Options {
    bool fetch = false;                     // new versions, or look at `head` only
    std::chrono::milliseconds poll{1'000};  // between two looks, of hubs that do not say when `head` moves
    RetryPolicy retry;
    std::uint64_t seed = 0;  // of the pauses' jitter
  };
  struct Fetched {
    NextVersion version;
    std::chrono::nanoseconds ready{0};  // Clock::monotonic() after fetch and check
  };

  // `held`: the newest version that is known. All outlive the watch.
  VersionWatch(Subscriber& subscriber, Version held, Options options, EventSink& events, const Clock& clock);
  // Waits for the operation that is under way; the subscriber's next pull() gives its version.
  ~VersionWatch();
  VersionWatch(const VersionWatch&) = delete;
  VersionWatch& operator=(const VersionWatch&) = delete;

  // The newest version that was fetched, once; none while a newer one is being fetched. Thread safe.
  std::optional<Fetched> take();
  // What take() gave is held now, and its weights are let go of. Thread safe.
  void loaded();
  // As last read; none before the first time and after the watch has ended. Thread safe.
  std::optional<Head> head() const;

 private:
  void work(const std::stop_token& stop);
  void watch(const std::stop_token& stop);
  Result<Head> look(const std::stop_token& stop, std::chrono::milliseconds time);
  void hold_what_is_loaded();

  Subscriber& subscriber_;
  const Options options_;
  const Clock& clock_;
  Retrier retrier_;
  Version newest_;  // of the thread below

  mutable std::mutex mutex_;  // for those below
  std::condition_variable_any changed_;
  std::stop_source wake_;  // ends the look under way
  std::optional<Head> head_;
  std::optional<Fetched> fetched_;
  bool taken_ = false;   // and the subscriber does not know yet that it is held
  bool loaded_ = false;  // what was taken

  std::jthread thread_;
};

}  // namespace flotilla
