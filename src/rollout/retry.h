#pragma once

#include <chrono>
#include <stop_token>
#include <string_view>

#include "base/clock.h"
#include "base/philox.h"
#include "base/status.h"
#include "telemetry/event_sink.h"

namespace flotilla {

struct RetryPolicy {
  std::chrono::milliseconds first{250};                // longest pause after the first failure; doubles with each
  std::chrono::milliseconds last{30'000};              // but never exceeds this
  std::chrono::milliseconds give_up{60 * 60 * 1'000};  // an operation that has failed for so long ends with its error
};

// The pause after the n-th failure in a row, n >= 1: uniform in the upper half of [0, min(first * 2^(n-1), last)], so
// that a fleet does not come back all at once.
std::chrono::milliseconds retry_pause(const RetryPolicy& policy, int failures, PhiloxStream& random);

// True when the whole time has passed; false as soon as a stop is requested.
bool wait_unless_stopped(const std::stop_token& stop, std::chrono::milliseconds time);

// Tries operations of the hub again as long as they may pass: the hub is away, slow or full. Each failure is a
// hub.error event. One thread.
class Retrier {
 public:
  Retrier(RetryPolicy policy, std::uint64_t seed, EventSink& events, const Clock& clock)
      : policy_(policy), random_(seed, 0), events_(events), clock_(clock) {}

  // What `attempt` (a Status or a Result) returned last: success, an error that stays, the error after `give_up`; or
  // cancelled when a stop was requested in a pause.
  template <typename Attempt>
  auto run(std::string_view operation, std::string_view key, const std::stop_token& stop, const Attempt& attempt)
      -> decltype(attempt()) {
    const auto start = clock_.monotonic();
    for (int failures = 1;; ++failures) {
      auto result = attempt();
      const Status status = status_of(result);
      if (status.ok()) return result;
      FLOTILLA_RETURN_IF_ERROR(pause(operation, key, stop, status, failures, start));
    }
  }

 private:
  static Status status_of(const Status& status) { return status; }
  template <typename T>
  static Status status_of(const Result<T>& result) {
    return result.status();
  }
  // Ok when the operation is to be tried again.
  Status pause(std::string_view operation, std::string_view key, const std::stop_token& stop, const Status& failure,
               int failures, std::chrono::nanoseconds start);

  const RetryPolicy policy_;
  PhiloxStream random_;
  EventSink& events_;
  const Clock& clock_;
};

}  // namespace flotilla
