#include "cli/run_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <vector>

#include "base/median.h"
#include "rollout/claim.h"
#include "telemetry/text_plot.h"

namespace flotilla {
namespace {

double share(double part, double whole) { return whole > 0 ? part / whole : 0; }

std::string staleness_text(const std::vector<std::int64_t>& groups) {
  std::string text;
  for (std::size_t age = 0; age < groups.size(); ++age)
    text += fmt::format("{}{}:{}", age == 0 ? "" : " ", age, groups[age]);
  return text;
}

}  // namespace

std::string reward_plot(const RunSummary& summary, const Terminal& terminal) {
  if (summary.steps().size() < 2) return {};
  std::vector<double> rewards;
  for (const StepSummary& step : summary.steps()) rewards.push_back(step.reward_mean);
  TextPlotOptions options;
  options.title = "mean reward of the batch, by optimizer step";
  options.x_first = static_cast<double>(summary.steps().front().step);
  return text_plot(rewards, options, terminal);
}

std::string steps_table(const RunSummary& summary, std::size_t last) {
  const auto& steps = summary.steps();
  if (steps.empty()) return {};
  std::string text = "  step  version  reward     loss  grad norm  staleness        gated  wait s  train s\n";
  for (std::size_t i = steps.size() > last ? steps.size() - last : 0; i < steps.size(); ++i) {
    const StepSummary& s = steps[i];
    text += fmt::format("{:6}  {:7}  {:6.3f}  {:7.4f}  {:9.3f}  {:15}  {:5}  {:6.1f}  {:7.1f}\n", s.step, s.version,
                        s.reward_mean, s.loss, s.gradient_norm, staleness_text(s.staleness), s.gated, s.seconds_wait,
                        s.seconds_train);
  }
  return text;
}

std::string workers_table(const RunSummary& summary) {
  if (summary.workers().empty()) return {};
  std::string text = "worker                            version  groups  tokens/s\n";
  for (const auto& [id, worker] : summary.workers()) {
    text += fmt::format("{:32}  {:>7}  {:6}  {:8.1f}{}\n", id.substr(0, 32),
                        worker.version < 0 ? "-" : std::to_string(worker.version), worker.groups,
                        share(static_cast<double>(worker.model_tokens), worker.sweep_seconds),
                        worker.stopped ? "  (stopped)" : "");
  }
  return text;
}

std::string weights_report(const RunSummary& summary) {
  std::vector<std::int64_t> deltas;
  std::vector<std::int64_t> changed;
  std::int64_t anchor = 0, total = 0, rescaled_groups = 0, rescaled_bytes = 0;
  double worked = 0, held = 0;
  for (const PublishSummary& publish : summary.publishes()) {
    anchor = std::max(anchor, publish.anchor_bytes);
    total = std::max(total, publish.total);
    rescaled_groups += publish.rescaled_groups;
    rescaled_bytes += publish.rescaled_bytes;
    worked += publish.seconds_worked;
    held += publish.seconds_held;
    if (publish.delta_bytes == 0) continue;
    deltas.push_back(publish.delta_bytes);
    changed.push_back(publish.changed);
  }
  if (deltas.empty()) return {};
  const auto delta = static_cast<double>(median(deltas));
  std::string text = fmt::format(
      "weights: {} versions; a delta is {} (median), an anchor {}: {:.0f}x less; {:.2f} % of the int8 weights change a "
      "version\n",
      summary.publishes().size(), bytes_text(delta), bytes_text(static_cast<double>(anchor)),
      share(static_cast<double>(anchor), delta),
      100 * share(static_cast<double>(median(changed)), static_cast<double>(total)));
  // Older programs do not tell.
  if (held == 0) return text;
  const auto versions = static_cast<double>(summary.publishes().size());
  return text +
         fmt::format(
             "publishing: {:.2f} s of encoding and upload a version, while training stood still for {:.2f} s; {} scale "
             "groups left their range, which cost {}\n",
             worked / versions, held / versions, rescaled_groups, bytes_text(static_cast<double>(rescaled_bytes)));
}

std::string training_report(const RunSummary& summary) {
  const auto& steps = summary.steps();
  if (steps.empty()) return {};
  double tokens = 0, gated = 0, past_gap = 0, past_ratio = 0, gap = 0;
  for (const StepSummary& s : steps) {
    const auto n = static_cast<double>(s.model_tokens);
    tokens += n;
    gated += static_cast<double>(s.gated);
    past_gap += static_cast<double>(s.past_gap);
    past_ratio += static_cast<double>(s.past_ratio);
    gap += s.gap_mean * n;
  }
  std::string text = fmt::format("training: {} steps on {:.0f} model tokens; staleness of groups in versions {}\n",
                                 steps.size(), tokens, staleness_text(summary.staleness()));
  text += fmt::format("reuse: no group was trained on more than {} time(s) on the surviving lineage (limit {})",
                      summary.max_reuse(), summary.max_reuse_allowed());
  text += summary.resumes() > 0
              ? fmt::format("; {} resume(s), which undid {} step(s)\n", summary.resumes(), summary.steps_lost())
              : "\n";
  text += fmt::format(
      "policy gap: mean |difference of logprob| {:.4f}; probability gap past the gate's delta {:.3f} %, "
      "ratio past 0.2 {:.2f} %, dropped by the gate {:.3f} % of the tokens\n",
      share(gap, tokens), 100 * share(past_gap, tokens), 100 * share(past_ratio, tokens), 100 * share(gated, tokens));
  for (const auto& [reason, count] : summary.dropped())
    text += fmt::format("dropped: {} group(s): {}\n", count, reason);
  return text;
}

std::string claims_report(const HubLayout& layout, std::span<const ObjectInfo> claims) {
  struct Epoch {
    std::set<std::uint64_t> claimed, done, again;  // blocks
  };
  std::map<std::uint64_t, Epoch> epochs;
  for (const ObjectInfo& object : claims) {
    const auto name = read_claim_key(layout, object.key);
    if (!name) continue;
    Epoch& epoch = epochs[name->id.epoch];
    (name->done_by ? epoch.done : name->id.lease > 0 ? epoch.again : epoch.claimed).insert(name->id.block);
  }
  if (epochs.empty()) return "claims: none yet\n";
  const auto newest = std::prev(epochs.end());
  // An epoch begins when the one before is claimed as a whole.
  const std::string of =
      newest == epochs.begin() ? "" : fmt::format(" of {}", std::prev(newest)->second.claimed.size());
  const Epoch& epoch = newest->second;
  return fmt::format("claims: epoch {}, {}{} blocks claimed, {} done, {} taken over\n", newest->first,
                     epoch.claimed.size(), of, epoch.done.size(), epoch.again.size());
}

std::string progress_text(const RunSummary& summary) {
  if (summary.steps().empty()) {
    if (!summary.warmup()) return "starting";
    return fmt::format("warm-up step {}/{}, loss {:.3f}", summary.warmup()->first, summary.warmup()->second,
                       summary.warmup_loss());
  }
  const StepSummary& step = summary.steps().back();
  double recent = 0;
  const std::size_t window = std::min<std::size_t>(5, summary.steps().size());
  for (std::size_t i = summary.steps().size() - window; i < summary.steps().size(); ++i)
    recent += summary.steps()[i].reward_mean;
  std::string text = fmt::format("step {}, reward {:.2f} (last {}: {:.2f}), staleness {}", step.step, step.reward_mean,
                                 window, recent / static_cast<double>(window), staleness_text(step.staleness));
  std::string speeds;
  for (const auto& [id, worker] : summary.workers()) {
    if (!worker.stopped) speeds += fmt::format("{}{:.0f}", speeds.empty() ? "" : "+", worker.tokens_per_second);
  }
  if (!speeds.empty()) text += fmt::format(", workers {} tokens/s", speeds);
  if (!summary.publishes().empty()) {
    text += fmt::format(", delta {}", bytes_text(static_cast<double>(summary.publishes().back().delta_bytes)));
  }
  return text;
}

}  // namespace flotilla
