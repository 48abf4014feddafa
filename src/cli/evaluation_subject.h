#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/status.h"
#include "cli/run_address.h"
#include "env/environment.h"
#include "model/grid.h"
#include "model/tokenizer.h"
#include "rollout/evaluate.h"
#include "telemetry/terminal.h"

namespace flotilla {

// A model on the grid with the environment that it is to be tried in.
struct EvaluationSubject {
  ModelDescription description;
  std::shared_ptr<const GridState> weights;
  std::shared_ptr<const Tokenizer> tokenizer;
  std::shared_ptr<const Environment> environment;
  std::string source;              // as the person named it
  std::optional<Version> version;  // of a run
};

// A version of a run, the newest when none is given, with the run's tokenizer and environment, all from the hub.
Result<EvaluationSubject> open_run_version(ObjectStore& store, const RunAddress& address,
                                           std::optional<Version> version);
// A GGUF file or a Hugging Face folder on the grid, with an environment made from what is installed here.
Result<EvaluationSubject> open_model_file(const std::filesystem::path& path, std::string_view environment,
                                          const std::filesystem::path& environment_source);

// Either, as a person names it: "HUB/OWNER/RUN", "HUB/OWNER/RUN@VERSION", or a file or folder.
Result<EvaluationSubject> open_subject(const std::string& text, std::string_view environment,
                                       const std::filesystem::path& environment_source);

struct EvaluationRequest {
  EvaluateOptions options;
  int threads = 0;  // 0: one a core
};

// Runs the evaluation on the engine and shows its progress on standard error.
Result<Evaluation> evaluate_subject(const EvaluationSubject& subject, const EvaluationRequest& request,
                                    const Terminal& terminal, std::stop_token stop);

// "pass@1 0.412 (standard error 0.021), pass@2 0.5 ...": one line, with line feed.
std::string evaluation_text(const Evaluation& evaluation);

}  // namespace flotilla
