#include "rollout/evaluate.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "rollout/group_file.h"

namespace flotilla {
namespace {

// The questions are the first ones that this name would be assigned as a worker.
const WorkerId kEvaluator("evaluation");

std::uint64_t evaluation_group(Split split, std::uint64_t task) {
  Sha256 hash;
  hash.update_framed("flotilla evaluation");
  hash.update_framed(split_name(split));
  hash.update_value(task);
  return sample_group(GroupId(hash.finish().to_hex()));
}

std::vector<std::int32_t> attempts_of(std::int32_t samples) {
  std::vector<std::int32_t> ks;
  for (std::int64_t k = 1; k < samples; k *= 2) ks.push_back(static_cast<std::int32_t>(k));
  ks.push_back(samples);
  return ks;
}

std::vector<double> pass_rates(const Evaluation& evaluation, std::int32_t k) {
  std::vector<double> rates;
  for (const QuestionResult& question : evaluation.questions) {
    rates.push_back(pass_at_k(evaluation.options.samples, question.passed, k));
  }
  return rates;
}

Status check_options(const EvaluateOptions& options, std::uint64_t tasks) {
  if (options.questions < 1 || options.skip < 0 || options.samples < 1 || options.questions_per_sweep < 1) {
    return invalid_argument(fmt::format("evaluation of {} questions after {}, {} samples, {} questions a sweep",
                                        options.questions, options.skip, options.samples, options.questions_per_sweep));
  }
  const auto questions = static_cast<std::uint64_t>(options.questions), skip = static_cast<std::uint64_t>(options.skip);
  if (questions > tasks || skip > tasks - questions) {
    return invalid_argument(fmt::format("evaluation of {} questions after {}, the {} split has {}", options.questions,
                                        options.skip, split_name(options.split), tasks));
  }
  return ok_status();
}

// What one question's episodes add to the sums.
class Tally {
 public:
  Tally(const EpisodeRules& rules, Evaluation& evaluation) : rules_(rules), evaluation_(evaluation) {}

  void add(std::size_t index, const Task& task, const FinishedGroup& group) {
    QuestionResult& result = evaluation_.questions[index];
    result.task = task.index;
    for (const Episode& episode : group.episodes) {
      result.passed += episode.reward >= kPassReward;
      result.reward += episode.reward / static_cast<double>(group.episodes.size());
      result.turns += static_cast<double>(episode.turns.size()) / static_cast<double>(group.episodes.size());
      truncated_ += episode.end == EpisodeEnd::kTokenLimit || episode.end == EpisodeEnd::kContext;
      for (const auto& [name, value] : episode.metrics) metrics_[name] += value;
    }
    if (index < evaluation_.examples.size()) {
      const Episode& first = group.episodes.front();
      evaluation_.examples[index] = {.task = task.index,
                                     .question = task.question,
                                     .text = episode_text(first, *rules_.tokenizer),
                                     .end = std::string(episode_end_name(first.end)),
                                     .reward = first.reward};
    }
  }

  void finish() {
    const auto episodes = static_cast<double>(evaluation_.work.episodes);
    evaluation_.truncated = static_cast<double>(truncated_) / episodes;
    for (const auto& [name, sum] : metrics_) evaluation_.metrics[name] = sum / episodes;
    std::vector<double> rewards, turns;
    for (const QuestionResult& question : evaluation_.questions) {
      rewards.push_back(question.reward);
      turns.push_back(question.turns);
    }
    evaluation_.reward = mean_estimate(rewards);
    evaluation_.turns = mean_estimate(turns);
    for (const std::int32_t k : attempts_of(evaluation_.options.samples)) {
      evaluation_.pass_at_k[k] = mean_estimate(pass_rates(evaluation_, k));
    }
  }

 private:
  const EpisodeRules& rules_;
  Evaluation& evaluation_;
  std::int64_t truncated_ = 0;
  std::map<std::string, double> metrics_;
};

void add_work(SweepReport& sum, const SweepReport& part) {
  sum.groups += part.groups;
  sum.episodes += part.episodes;
  sum.prompt_tokens += part.prompt_tokens;
  sum.model_tokens += part.model_tokens;
  sum.environment_tokens += part.environment_tokens;
  sum.calls += part.calls;
  sum.evictions += part.evictions;
}

}  // namespace

Estimate mean_estimate(const std::vector<double>& values) {
  Estimate estimate;
  const auto n = static_cast<double>(values.size());
  if (values.empty()) return estimate;
  for (const double value : values) estimate.value += value / n;
  double squares = 0;
  for (const double value : values) squares += (value - estimate.value) * (value - estimate.value);
  if (values.size() > 1) estimate.standard_error = std::sqrt(squares / (n - 1) / n);
  return estimate;
}

double pass_at_k(std::int32_t n, std::int32_t c, std::int32_t k) {
  double all_fail = 1;
  for (std::int32_t i = 0; i < k; ++i) all_fail *= std::max(0.0, static_cast<double>(n - c - i)) / (n - i);
  return 1 - all_fail;
}

Result<Evaluation> evaluate(Engine& engine, const EpisodeRules& rules, const EvaluateOptions& options,
                            const std::function<void(std::int64_t)>& progress, std::stop_token stop,
                            const Clock& clock) {
  const Environment& environment = *rules.environment;
  const std::uint64_t tasks = environment.task_count(options.split);
  FLOTILLA_RETURN_IF_ERROR(check_options(options, tasks));
  const auto start = clock.monotonic();
  Evaluation evaluation;
  evaluation.options = options;
  evaluation.questions.resize(options.questions);
  evaluation.examples.resize(std::clamp<std::int64_t>(options.examples, 0, options.questions));
  Tally tally(rules, evaluation);
  std::int64_t done = 0;
  for (std::int64_t first = 0; first < options.questions; first += options.questions_per_sweep) {
    std::vector<SweepItem> items;
    for (std::int64_t i = first; i < std::min(options.questions, first + options.questions_per_sweep); ++i) {
      const std::uint64_t index =
          assigned_task(options.seed, kEvaluator, static_cast<std::uint64_t>(options.skip + i), tasks);
      FLOTILLA_ASSIGN_OR_RETURN(Task task, environment.task(options.split, index));
      items.push_back({.task = std::move(task),
                       .sample_group = evaluation_group(options.split, index),
                       .episodes = options.samples});
    }
    const SweepSettings settings{.seed = options.seed,
                                 .sampling = options.sampling,
                                 .version = {},
                                 .state = {},
                                 .rows_per_call = options.rows_per_call,
                                 .share_prefixes = options.share_prefixes};
    const auto on_group = [&](const FinishedGroup& group) {
      tally.add(static_cast<std::size_t>(first) + group.item, items[group.item].task, group);
      if (progress) progress(++done);
      return ok_status();
    };
    FLOTILLA_ASSIGN_OR_RETURN(const SweepReport report,
                              run_sweep(engine, rules, settings, items, {.on_group = on_group}, stop));
    add_work(evaluation.work, report);
    ++evaluation.sweeps;
  }
  tally.finish();
  evaluation.seconds = std::chrono::duration<double>(clock.monotonic() - start).count();
  return evaluation;
}

Result<std::map<std::int32_t, PairedEstimate>> compare(const Evaluation& before, const Evaluation& after) {
  const SamplingParams &a = before.options.sampling, &b = after.options.sampling;
  if (a.temperature != b.temperature || a.top_k != b.top_k || a.top_p != b.top_p) {
    return invalid_argument("the two evaluations did not sample in the same way");
  }
  const auto same_question = [](const QuestionResult& a, const QuestionResult& b) { return a.task == b.task; };
  if (before.options.split != after.options.split || before.options.seed != after.options.seed ||
      before.options.samples != after.options.samples ||
      !std::ranges::equal(before.questions, after.questions, same_question)) {
    return invalid_argument("the two evaluations did not ask the same questions with the same seed and samples");
  }
  std::map<std::int32_t, PairedEstimate> comparison;
  for (const std::int32_t k : attempts_of(before.options.samples)) {
    std::vector<double> differences = pass_rates(after, k);
    const std::vector<double> rates_before = pass_rates(before, k);
    for (std::size_t i = 0; i < differences.size(); ++i) differences[i] -= rates_before[i];
    comparison[k] = {.before = mean_estimate(rates_before),
                     .after = mean_estimate(pass_rates(after, k)),
                     .difference = mean_estimate(differences)};
  }
  return comparison;
}

}  // namespace flotilla
