#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "serve/scheduler.h"
#include "serve/serve_metrics.h"

namespace flotilla {

// Runs a scheduler on a thread of its own: requests come from any thread, forward passes follow each other while there
// is work, and the thread sleeps while there is none.
class GenerationService {
 public:
  // Called on the service's thread, in order, or, after stop, on the caller's; must not block. Never again after an
  // event with `end`.
  using Sink = std::function<void(GenerationEvent)>;

  // Borrows all. Nobody else uses the engine until the service is gone.
  GenerationService(Engine& engine, const Tokenizer& tokenizer, SchedulerLimits limits, ServeMetrics& metrics,
                    const Clock& clock = system_clock());
  // Ends what is left, as stop(0).
  ~GenerationService();
  GenerationService(const GenerationService&) = delete;
  GenerationService& operator=(const GenerationService&) = delete;

  // Prompt and answer of one choice, in tokens, that can be served at most.
  std::int32_t context() const { return context_; }

  // Refusals come as an event too.
  RequestId submit(GenerationRequest request, Sink sink);
  // The request's last event says cancelled, unless it has ended already.
  void cancel(RequestId id);
  // From now on requests are refused as unavailable; those that are there go on for `grace` at most, and then end as
  // unavailable. Returns when none is left.
  void stop(std::chrono::nanoseconds grace);

 private:
  struct Submission {
    RequestId id;
    GenerationRequest request;
    Sink sink;
  };
  void run();
  void begin(Submission submission, bool refuse);
  void deliver();

  const Clock& clock_;
  ServeMetrics& metrics_;
  Engine& engine_;
  Scheduler scheduler_;  // the thread's own, as sinks_
  std::map<RequestId, Sink> sinks_;
  const std::int32_t context_;

  std::mutex mutex_;
  std::condition_variable wake_;
  std::uint64_t last_id_ = 0;  // guarded by mutex_, as the rest
  std::vector<Submission> submissions_;
  std::vector<RequestId> cancellations_;
  std::optional<std::chrono::nanoseconds> stop_at_;  // set: stopping
  bool gone_ = false;                                // nobody looks at submissions any more
  std::jthread thread_;
};

}  // namespace flotilla
