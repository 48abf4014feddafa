#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <stop_token>
#include <thread>

#include "base/clock.h"
#include "config/run_config.h"
#include "sync/run_retention.h"
#include "telemetry/event_sink.h"

namespace flotilla {

// The rules of a run's configuration.
RetentionRules retention_rules(const RunConfig& config);

// Cleans up a run beside its training, on a thread of its own: a look now and then, of so many removals at most.
// Failures are logged, and the next look goes on. Thread safe.
class RetentionKeeper {
 public:
  struct Options {
    RetentionRules rules;
    std::chrono::nanoseconds every = std::chrono::minutes(10);  // 0: only make_room()
    std::size_t objects_max = 1000;                             // of a look
    std::chrono::nanoseconds after_every{0};                    // calls `after` so often where no looks do; 0: never
    std::stop_token stop = {};                                  // ends make_room()
  };
  // `after` is called at the end of each look, and may call make_room(). All outlive the keeper.
  RetentionKeeper(RunRetention retention, Options options, EventSink& events, std::function<void()> after,
                  const Clock& clock = system_clock());
  // Waits for the one removal that is under way.
  ~RetentionKeeper();
  RetentionKeeper(const RetentionKeeper&) = delete;
  RetentionKeeper& operator=(const RetentionKeeper&) = delete;

  // Removes all that may go, at once, by the strictest rules that are still safe: groups that cannot be trained on
  // whatever their age, and if that was nothing, versions under a lease, whose readers will take an anchor.
  // cancelled when it was asked to stop.
  Status make_room();

 private:
  void work(const std::stop_token& stop);
  // The number of objects that were removed.
  Result<std::uint64_t> look(const RetentionRules& rules, std::size_t objects_max, const std::stop_token& stop);

  const Options options_;
  EventSink& events_;
  const std::function<void()> after_;
  const Clock& clock_;
  std::stop_source leaving_;
  const std::stop_callback<std::function<void()>> leave_;

  std::mutex looking_;
  RunRetention retention_;  // guarded by looking_

  std::mutex mutex_;  // of the wait
  std::condition_variable_any wake_;
  std::jthread thread_;
};

}  // namespace flotilla
