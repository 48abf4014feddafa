#include "rollout/retry.h"

#include <algorithm>
#include <condition_variable>
#include <mutex>

#include <fmt/format.h>

#include "base/log.h"
#include "sync/store_access.h"

namespace flotilla {

std::chrono::milliseconds retry_pause(const RetryPolicy& policy, int failures, PhiloxStream& random) {
  std::chrono::milliseconds longest = policy.first;
  for (int i = 1; i < failures && longest < policy.last; ++i) longest *= 2;
  longest = std::min(longest, policy.last);
  return std::chrono::milliseconds(
      static_cast<std::int64_t>(static_cast<double>(longest.count()) * (0.5 + 0.5 * random.uniform())));
}

bool wait_unless_stopped(const std::stop_token& stop, std::chrono::milliseconds time) {
  std::mutex mutex;
  std::condition_variable_any never;
  std::unique_lock lock(mutex);
  never.wait_for(lock, stop, time, [] { return false; });
  return !stop.stop_requested();
}

Status Retrier::pause(std::string_view operation, std::string_view key, const std::stop_token& stop,
                      const Status& failure, int failures, std::chrono::nanoseconds start) {
  if (!may_pass(failure) && failure.code() != StatusCode::kResourceExhausted) return failure;
  events_.emit({"hub.error", {{"operation", operation}, {"key", key}, {"message", failure.to_string()}}});
  const auto failing = clock_.monotonic() - start;
  if (failing >= policy_.give_up) {
    return failure.with_context(fmt::format("{} {}: given up after {} attempts in {:.1f} s", operation, key, failures,
                                            std::chrono::duration<double>(failing).count()));
  }
  const auto time = retry_pause(policy_, failures, random_);
  log_warning("rollout", "{} {} failed, attempt {}, again in {} ms: {}", operation, key, failures, time.count(),
              failure.to_string());
  if (!wait_unless_stopped(stop, time)) return cancelled(fmt::format("{} {}: asked to stop", operation, key));
  return ok_status();
}

}  // namespace flotilla
