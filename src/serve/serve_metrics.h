#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <string>

#include "engine/engine.h"
#include "serve/scheduler.h"

namespace flotilla {

// How a request for an answer ended.
enum class RequestOutcome { kCompleted, kRefused, kQueueFull, kCancelled, kTimeLimit, kFailed };
inline constexpr int kRequestOutcomes = 6;

// What a server counts, in Prometheus' text form (version 0.0.4). Thread safe.
class ServeMetrics {
 public:
  void request_ended(RequestOutcome outcome, std::chrono::nanoseconds duration);
  // The first tokens of a request are on their way to its client.
  void first_token(std::chrono::nanoseconds duration);
  // The present state of scheduler and engine.
  void observe(const SchedulerCounts& counts, const EngineUsage& usage);
  std::string text() const;

 private:
  struct Histogram {
    static constexpr std::array<double, 12> kBounds = {0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 60, 120, 300, 600};  // s
    std::array<std::int64_t, kBounds.size()> below{};  // at most the bound
    std::int64_t count = 0;
    double sum = 0;
    void add(double seconds);
    std::string text(std::string_view name, std::string_view help) const;
  };

  mutable std::mutex mutex_;  // guards all
  std::array<std::int64_t, kRequestOutcomes> ended_{};
  Histogram durations_;
  Histogram first_tokens_;
  SchedulerCounts counts_;
  EngineUsage usage_;
};

}  // namespace flotilla
