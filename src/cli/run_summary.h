#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "telemetry/event_record.h"

namespace flotilla {

// One optimizer step of the surviving lineage.
struct StepSummary {
  std::int64_t step = 0;
  std::int64_t version = 0;
  double reward_mean = 0;
  double loss = 0;
  double gradient_norm = 0;
  std::int64_t model_tokens = 0;
  std::int64_t gated = 0;
  std::int64_t past_gap = 0;
  std::int64_t past_ratio = 0;
  double gap_mean = 0;
  double seconds_wait = 0;
  double seconds_train = 0;
  std::vector<std::string> groups;
  std::vector<std::int64_t> staleness;  // groups by their age in versions
};

struct PublishSummary {
  std::int64_t version = 0;
  std::int64_t delta_bytes = 0;
  std::int64_t anchor_bytes = 0;
  std::int64_t changed = 0;
  std::int64_t total = 0;
  std::int64_t rescaled_groups = 0;
  std::int64_t rescaled_bytes = 0;
  double seconds_worked = 0;  // encoding and upload
  double seconds_held = 0;
};

struct WorkerSummary {
  std::int64_t version = -1;
  std::int64_t groups = 0;       // uploaded
  double tokens_per_second = 0;  // of its last sweep
  std::int64_t model_tokens = 0;
  double sweep_seconds = 0;
  bool stopped = false;
};

// What the event log of a run says, told in the order of time. A pure fold over events.
class RunSummary {
 public:
  void add(const EventRecord& record);

  const std::vector<StepSummary>& steps() const { return steps_; }
  const std::vector<PublishSummary>& publishes() const { return publishes_; }
  const std::map<std::string, WorkerSummary>& workers() const { return workers_; }
  // Steps done and in all of the warm-up; empty before it.
  std::optional<std::pair<std::int64_t, std::int64_t>> warmup() const { return warmup_; }
  double warmup_loss() const { return warmup_loss_; }
  const std::map<std::string, std::int64_t>& dropped() const { return dropped_; }  // groups by reason
  std::int64_t resumes() const { return resumes_; }
  std::int64_t steps_lost() const { return steps_lost_; }  // that a resume undid
  std::int64_t max_reuse_allowed() const { return max_reuse_; }
  std::optional<std::string> finished() const { return finished_; }  // why

  // The most optimizer steps of the surviving lineage that trained on one group.
  std::int64_t max_reuse() const;
  // Groups by staleness over all steps.
  std::vector<std::int64_t> staleness() const;

 private:
  std::vector<StepSummary> steps_;
  std::vector<PublishSummary> publishes_;
  std::map<std::string, WorkerSummary> workers_;
  std::map<std::string, std::int64_t> dropped_;
  std::optional<std::pair<std::int64_t, std::int64_t>> warmup_;
  double warmup_loss_ = 0;
  std::int64_t resumes_ = 0;
  std::int64_t steps_lost_ = 0;
  std::int64_t max_reuse_ = 0;
  std::optional<std::string> finished_;
};

// "12.3 MB"
std::string bytes_text(double bytes);

}  // namespace flotilla
