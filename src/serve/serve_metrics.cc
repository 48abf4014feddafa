#include "serve/serve_metrics.h"

#include <iterator>

#include <fmt/format.h>

namespace flotilla {
namespace {

// In the order of RequestOutcome.
constexpr std::array<std::string_view, kRequestOutcomes> kOutcomes = {"completed", "refused",    "queue_full",
                                                                      "cancelled", "time_limit", "failed"};

std::string family(std::string_view name, std::string_view type, std::string_view help) {
  return fmt::format("# HELP {0} {2}\n# TYPE {0} {1}\n", name, type, help);
}

}  // namespace

void ServeMetrics::Histogram::add(double seconds) {
  ++count;
  sum += seconds;
  for (std::size_t i = 0; i < kBounds.size(); ++i) below[i] += seconds <= kBounds[i];
}

std::string ServeMetrics::Histogram::text(std::string_view name, std::string_view help) const {
  std::string out = family(name, "histogram", help);
  for (std::size_t i = 0; i < kBounds.size(); ++i) {
    out += fmt::format("{}_bucket{{le=\"{}\"}} {}\n", name, kBounds[i], below[i]);
  }
  return out + fmt::format("{0}_bucket{{le=\"+Inf\"}} {1}\n{0}_sum {2}\n{0}_count {1}\n", name, count, sum);
}

void ServeMetrics::request_ended(RequestOutcome outcome, std::chrono::nanoseconds duration) {
  const std::lock_guard lock(mutex_);
  ++ended_[static_cast<std::size_t>(outcome)];
  if (outcome == RequestOutcome::kCompleted) durations_.add(std::chrono::duration<double>(duration).count());
}

void ServeMetrics::first_token(std::chrono::nanoseconds duration) {
  const std::lock_guard lock(mutex_);
  first_tokens_.add(std::chrono::duration<double>(duration).count());
}

void ServeMetrics::observe(const SchedulerCounts& counts, const EngineUsage& usage) {
  const std::lock_guard lock(mutex_);
  counts_ = counts;
  usage_ = usage;
}

std::string ServeMetrics::text() const {
  const std::lock_guard lock(mutex_);
  std::string out = family("flotilla_requests_total", "counter", "Requests for an answer that have ended, by outcome.");
  for (std::size_t i = 0; i < ended_.size(); ++i) {
    out += fmt::format("flotilla_requests_total{{outcome=\"{}\"}} {}\n", kOutcomes[i], ended_[i]);
  }
  const auto one = [&](std::string_view name, std::string_view type, std::string_view help, std::int64_t value) {
    out += family(name, type, help) + fmt::format("{} {}\n", name, value);
  };
  one("flotilla_requests_queued", "gauge", "Requests of which nothing is computed yet.", counts_.queued);
  one("flotilla_requests_running", "gauge", "Requests that are being answered.", counts_.running);
  one("flotilla_sequences_active", "gauge", "Sequences in the batch.", counts_.active_sequences);
  one("flotilla_generated_tokens_total", "counter", "Tokens sampled.", counts_.tokens_generated);
  one("flotilla_prompt_tokens_total", "counter", "Tokens of accepted prompts.", counts_.prompt_tokens);
  one("flotilla_computed_tokens_total", "counter", "Tokens that went through the model.", usage_.tokens_computed);
  one("flotilla_preemptions_total", "counter", "Sequences that gave their KV back for others.", counts_.preemptions);
  one("flotilla_kv_blocks_used", "gauge", "KV blocks in use.", usage_.blocks_used);
  one("flotilla_kv_blocks", "gauge", "KV blocks of the pool.", usage_.blocks_total);
  out += first_tokens_.text("flotilla_first_token_seconds",
                            "From a request's arrival to its first token released: not held back for a stop string.");
  out += durations_.text("flotilla_request_seconds", "From a completed request's arrival to its end.");
  return out;
}

}  // namespace flotilla
