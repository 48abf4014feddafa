#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <limits>
#include <memory>
#include <string>

#include "base/files.h"
#include "cli/commands.h"
#include "cli/evaluation_subject.h"
#include "cli/stop_signals.h"

namespace flotilla {
namespace {

struct EvalOptions {
  std::string subject;
  std::string environment = "dictionary";
  std::string environment_source = "/usr/share/wordnet";
  std::string json;
  std::int64_t examples = 3;
  EvaluationRequest request;
};

Status eval(const EvalOptions& options) {
  StopSignals signals;
  FLOTILLA_ASSIGN_OR_RETURN(const EvaluationSubject subject,
                            open_subject(options.subject, options.environment, options.environment_source));
  EvaluationRequest request = options.request;
  request.options.examples = static_cast<std::int32_t>(options.examples);
  FLOTILLA_ASSIGN_OR_RETURN(const Evaluation evaluation,
                            evaluate_subject(subject, request, inspect_terminal(2), signals.token()));
  for (const ExampleEpisode& example : evaluation.examples) {
    fmt::print("--- task {}, reward {:.0f}, {}\n{}\n{}\n", example.task, example.reward, example.end, example.question,
               example.text);
  }
  fmt::print("{}{}: {}", evaluation.examples.empty() ? "" : "---\n", options.subject, evaluation_text(evaluation));
  if (options.json.empty()) return ok_status();
  return write_file_atomically(options.json, evaluation_to_json(evaluation).dump(2) + "\n");
}

}  // namespace

void add_eval_command(CLI::App& app, Action& action) {
  CLI::App* command =
      app.add_subcommand("eval", "pass@1 and pass@k on held-out tasks, of any version of a run or a model file");
  auto options = std::make_shared<EvalOptions>();
  EvaluateOptions& evaluation = options->request.options;
  command
      ->add_option("SUBJECT", options->subject,
                   "HUB/OWNER/RUN, HUB/OWNER/RUN@VERSION, a .gguf file or a Hugging Face folder")
      ->required();
  command->add_option("--questions", evaluation.questions, "Held-out tasks")
      ->capture_default_str()
      ->check(CLI::Range(1, 1000000));
  command->add_option("--skip", evaluation.skip, "Tasks of the seed's order to leave out before the first one")
      ->capture_default_str()
      ->check(CLI::Range(0, 1000000000));
  command->add_option("--samples", evaluation.samples, "Episodes a task")
      ->capture_default_str()
      ->check(CLI::Range(1, 1024));
  command->add_option("--temperature", evaluation.sampling.temperature, "Sampling temperature; 0: most likely token")
      ->capture_default_str()
      ->check(CLI::Range(0.0, 10.0));
  command->add_option("--seed", evaluation.seed, "Fixes questions and samples")
      ->capture_default_str()
      ->check(CLI::Range(std::int64_t{0}, std::numeric_limits<std::int64_t>::max()));
  command->add_option("--threads", options->request.threads, "Threads of the engine; 0: one a core")
      ->capture_default_str()
      ->check(CLI::Range(0, 1024));
  command->add_option("--questions-per-sweep", evaluation.questions_per_sweep, "Questions that are decoded together")
      ->capture_default_str()
      ->check(CLI::Range(1, 1024));
  command->add_flag("!--no-prefix", evaluation.share_prefixes,
                    "Compute each episode's prompt by itself: the same result for more work, to measure what sharing "
                    "saves");
  command->add_option("--examples", options->examples, "Episodes to print")
      ->capture_default_str()
      ->check(CLI::Range(0, 1000));
  command->add_option("--json", options->json, "Write the result to this file");
  command->add_option("--environment", options->environment, "For a model file: the environment")
      ->capture_default_str();
  command
      ->add_option("--environment-source", options->environment_source,
                   "For a model file: what the environment is made from")
      ->capture_default_str();
  command->footer(
      "Examples:\n"
      "  flotilla eval out/demo/1/hub/demo/dictionary@0 --questions 100 --samples 4\n"
      "  flotilla eval SmolLM2-135M-Instruct.Q4_1.gguf --json before.json");
  command->callback([&action, options] { action = [options] { return eval(*options); }; });
}

}  // namespace flotilla
