#include "cli/run_summary.h"

#include <fmt/format.h>

#include <algorithm>

namespace flotilla {
namespace {

// A newer program may have written the log: what is absent or of another type reads as its zero.
template <typename T>
T field(const Event& event, const char* name) {
  const auto found = event.fields.find(name);
  if (found == event.fields.end()) return {};
  if constexpr (std::is_same_v<T, std::string>) {
    return found->is_string() ? found->get<std::string>() : T{};
  } else {
    return found->is_number() ? found->get<T>() : T{};
  }
}

template <typename T>
std::vector<T> list(const Event& event, const char* name) {
  std::vector<T> values;
  const auto found = event.fields.find(name);
  if (found == event.fields.end() || !found->is_array()) return values;
  for (const auto& item : *found) {
    if constexpr (std::is_same_v<T, std::string>) {
      if (item.is_string()) values.push_back(item.template get<T>());
    } else {
      if (item.is_number()) values.push_back(item.template get<T>());
    }
  }
  return values;
}

StepSummary step_of(const Event& event) {
  StepSummary step;
  step.step = field<std::int64_t>(event, "step");
  step.version = field<std::int64_t>(event, "version");
  step.reward_mean = field<double>(event, "reward_mean");
  step.loss = field<double>(event, "loss");
  step.gradient_norm = field<double>(event, "gradient_norm");
  step.model_tokens = field<std::int64_t>(event, "model_tokens");
  step.gated = field<std::int64_t>(event, "gated");
  step.past_gap = field<std::int64_t>(event, "past_gap");
  step.past_ratio = field<std::int64_t>(event, "past_ratio");
  step.gap_mean = field<double>(event, "gap_mean");
  step.seconds_wait = field<double>(event, "seconds_wait");
  step.seconds_train = field<double>(event, "seconds_train");
  step.groups = list<std::string>(event, "groups");
  step.staleness = list<std::int64_t>(event, "staleness");
  return step;
}

}  // namespace

void RunSummary::add(const EventRecord& record) {
  const Event& event = record.event;
  if (event.kind.starts_with("learner.") && record.writer != "learner") return;
  if (event.kind == "learner.start") {
    max_reuse_ = field<std::int64_t>(event, "max_reuse");
    finished_.reset();
  } else if (event.kind == "learner.resume") {
    ++resumes_;
    const auto kept = field<std::int64_t>(event, "step");
    const auto undone =
        std::remove_if(steps_.begin(), steps_.end(), [&](const StepSummary& s) { return s.step > kept; });
    steps_lost_ += steps_.end() - undone;
    steps_.erase(undone, steps_.end());
  } else if (event.kind == "learner.warmup_step") {
    warmup_ = {field<std::int64_t>(event, "step"), field<std::int64_t>(event, "steps")};
    warmup_loss_ = field<double>(event, "loss");
  } else if (event.kind == "learner.step") {
    steps_.push_back(step_of(event));
  } else if (event.kind == "learner.publish") {
    publishes_.push_back({field<std::int64_t>(event, "version"), field<std::int64_t>(event, "delta_bytes"),
                          field<std::int64_t>(event, "anchor_bytes"), field<std::int64_t>(event, "changed"),
                          field<std::int64_t>(event, "total"), field<std::int64_t>(event, "rescaled_groups"),
                          field<std::int64_t>(event, "rescaled_bytes"),
                          field<double>(event, "seconds_encode") + field<double>(event, "seconds_upload"),
                          field<double>(event, "seconds_held")});
  } else if (event.kind == "learner.dropped_group") {
    ++dropped_[field<std::string>(event, "reason")];
  } else if (event.kind == "learner.finish") {
    finished_ = field<std::string>(event, "reason");
  } else if (event.kind.starts_with("worker.")) {
    WorkerSummary& worker = workers_[record.writer];
    if (event.kind == "worker.start") {
      worker.stopped = false;
    } else if (event.kind == "worker.stop") {
      worker.stopped = true;
    } else if (event.kind == "worker.pull") {
      worker.version = field<std::int64_t>(event, "version");
    } else if (event.kind == "worker.upload") {
      ++worker.groups;
    } else if (event.kind == "worker.sweep") {
      worker.tokens_per_second = field<double>(event, "tokens_per_second");
      worker.model_tokens += field<std::int64_t>(event, "model_tokens");
      worker.sweep_seconds += field<double>(event, "seconds");
    }
  }
}

std::int64_t RunSummary::max_reuse() const {
  std::map<std::string, std::int64_t> uses;
  std::int64_t most = 0;
  for (const StepSummary& step : steps_) {
    for (const std::string& group : step.groups) most = std::max(most, ++uses[group]);
  }
  return most;
}

std::vector<std::int64_t> RunSummary::staleness() const {
  std::vector<std::int64_t> total;
  for (const StepSummary& step : steps_) {
    if (step.staleness.size() > total.size()) total.resize(step.staleness.size());
    for (std::size_t age = 0; age < step.staleness.size(); ++age) total[age] += step.staleness[age];
  }
  return total;
}

std::string bytes_text(double bytes) {
  constexpr const char* kUnits[] = {"B", "kB", "MB", "GB", "TB"};
  int unit = 0;
  while (bytes >= 999.5 && unit < 4) {
    bytes /= 1000;
    ++unit;
  }
  return unit == 0 ? fmt::format("{:.0f} B", bytes) : fmt::format("{:.3g} {}", bytes, kUnits[unit]);
}

}  // namespace flotilla
