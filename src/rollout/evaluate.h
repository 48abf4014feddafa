#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <stop_token>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/clock.h"
#include "base/status.h"
#include "engine/engine.h"
#include "rollout/episode_builder.h"
#include "rollout/sweep.h"

namespace flotilla {

inline constexpr double kPassReward = 1;  // an episode passes when its reward is at least this

// Questions and random numbers follow from seed and split alone: evaluations of two versions with the same options are
// paired question by question.
struct EvaluateOptions {
  Split split = Split::kHeldOut;
  std::int64_t questions = 250;
  std::int64_t skip = 0;     // questions before the first one: evaluations of other parts of the order share none
  std::int32_t samples = 2;  // episodes a question
  SamplingParams sampling;
  std::uint64_t seed = 0;
  std::int64_t questions_per_sweep = 64;
  std::int32_t rows_per_call = 64;  // SweepSettings
  bool share_prefixes = true;       // SweepSettings
  std::int32_t examples = 3;        // questions whose first episode is kept to be read: the first ones
};

// A mean over questions and its standard error: the standard deviation (n - 1) over sqrt(n). The error of a single
// question is 0.
struct Estimate {
  double value = 0;
  double standard_error = 0;
};
Estimate mean_estimate(const std::vector<double>& values);

// The chance that at least one of k attempts passes when c of n did, unbiased: 1 - C(n - c, k) / C(n, k) (Chen et al.,
// "Evaluating Large Language Models Trained on Code", 2021, equation 1). 0 <= c <= n, 1 <= k <= n.
double pass_at_k(std::int32_t n, std::int32_t c, std::int32_t k);

struct QuestionResult {
  std::uint64_t task = 0;
  std::int32_t passed = 0;  // episodes, of EvaluateOptions::samples
  double reward = 0;        // mean
  double turns = 0;         // of the model, mean
};

struct ExampleEpisode {
  std::uint64_t task = 0;
  std::string question;
  std::string text;  // all that followed the prompt
  std::string end;   // episode_end_name()
  double reward = 0;
};

struct Evaluation {
  EvaluateOptions options;
  std::vector<QuestionResult> questions;       // in the order that options fix
  std::map<std::int32_t, Estimate> pass_at_k;  // for 1, 2, 4, ... and the number of samples
  Estimate reward;
  Estimate turns;
  double truncated = 0;                   // share of episodes that a token or context limit cut off
  std::map<std::string, double> metrics;  // of the environment, means over episodes
  std::vector<ExampleEpisode> examples;
  SweepReport work;
  std::int64_t sweeps = 0;
  double seconds = 0;
};

// Answers the questions with the weights that the engine holds. `progress` is told the number of questions that are
// done. invalid_argument for more questions than the split has or numbers out of range; cancelled on `stop`; else as
// run_sweep().
Result<Evaluation> evaluate(Engine& engine, const EpisodeRules& rules, const EvaluateOptions& options,
                            const std::function<void(std::int64_t done)>& progress = {}, std::stop_token stop = {},
                            const Clock& clock = system_clock());

// pass@k before and after, and the mean of the differences question by question with its standard error.
struct PairedEstimate {
  Estimate before;
  Estimate after;
  Estimate difference;
};
// One entry a k. invalid_argument unless both evaluations asked the same questions in the same way.
Result<std::map<std::int32_t, PairedEstimate>> compare(const Evaluation& before, const Evaluation& after);

// docs/formats/evaluation.md
nlohmann::json evaluation_to_json(const Evaluation& evaluation);
nlohmann::json comparison_to_json(const Evaluation& before, const Evaluation& after,
                                  const std::map<std::int32_t, PairedEstimate>& comparison);

}  // namespace flotilla
