#include "rollout/evaluate.h"

namespace flotilla {
namespace {

using nlohmann::json;

json to_json(const Estimate& estimate) {
  return {{"value", estimate.value}, {"standard_error", estimate.standard_error}};
}

json to_json(const ExampleEpisode& example) {
  return {{"task", example.task},
          {"question", example.question},
          {"text", example.text},
          {"end", example.end},
          {"reward", example.reward}};
}

json options_to_json(const EvaluateOptions& options) {
  return {{"split", split_name(options.split)},
          {"skip", options.skip},
          {"samples", options.samples},
          {"seed", options.seed},
          {"temperature", options.sampling.temperature},
          {"top_k", options.sampling.top_k},
          {"top_p", options.sampling.top_p}};
}

}  // namespace

json evaluation_to_json(const Evaluation& evaluation) {
  json result = options_to_json(evaluation.options);
  result["questions"] = evaluation.questions.size();
  result["pass_at_1"] = to_json(evaluation.pass_at_k.at(1));
  json& rates = result["pass_at_k"] = json::object();
  for (const auto& [k, estimate] : evaluation.pass_at_k) rates[std::to_string(k)] = to_json(estimate);
  result["reward"] = to_json(evaluation.reward);
  result["turns"] = to_json(evaluation.turns);
  result["truncated"] = evaluation.truncated;
  result["metrics"] = evaluation.metrics;
  result["model_tokens"] = evaluation.work.model_tokens;
  result["prompt_tokens"] = evaluation.work.prompt_tokens;
  result["environment_tokens"] = evaluation.work.environment_tokens;
  result["sweeps"] = evaluation.sweeps;
  result["evictions"] = evaluation.work.evictions;
  result["seconds"] = evaluation.seconds;
  json& questions = result["by_question"] = json::array();
  for (const QuestionResult& question : evaluation.questions) {
    questions.push_back(
        {{"task", question.task}, {"passed", question.passed}, {"reward", question.reward}, {"turns", question.turns}});
  }
  json& examples = result["examples"] = json::array();
  for (const ExampleEpisode& example : evaluation.examples) examples.push_back(to_json(example));
  return result;
}

json comparison_to_json(const Evaluation& before, const Evaluation& after,
                        const std::map<std::int32_t, PairedEstimate>& comparison) {
  json result = options_to_json(before.options);
  const PairedEstimate& first = comparison.at(1);
  result["questions"] = before.questions.size();
  result["pass_at_1"] = {{"before", first.before.value}, {"after", first.after.value}};
  result["difference"] = first.difference.value;
  result["standard_error"] = {{"before", first.before.standard_error},
                              {"after", first.after.standard_error},
                              {"difference", first.difference.standard_error}};
  json& rates = result["pass_at_k"] = json::object();
  for (const auto& [k, paired] : comparison) {
    rates[std::to_string(k)] = {{"before", paired.before.value}, {"after", paired.after.value}};
  }
  json& examples = result["examples"] = {{"before", json::array()}, {"after", json::array()}};
  for (const ExampleEpisode& example : before.examples) examples["before"].push_back(to_json(example));
  for (const ExampleEpisode& example : after.examples) examples["after"].push_back(to_json(example));
  result["seconds"] = before.seconds + after.seconds;
  return result;
}

}  // namespace flotilla
