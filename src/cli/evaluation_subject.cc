#include "cli/evaluation_subject.h"

#include <fmt/format.h>

#include <algorithm>
#include <iostream>

#include "base/thread_pool.h"
#include "base/user_folders.h"
#include "cli/subject_address.h"
#include "model/weights.h"
#include "rollout/memory_plan.h"
#include "rollout/run_assets.h"
#include "sync/run_spec.h"
#include "sync/subscriber.h"
#include "telemetry/progress_line.h"

namespace flotilla {

Result<EvaluationSubject> open_run_version(ObjectStore& store, const RunAddress& address,
                                           std::optional<Version> version) {
  const HubLayout layout = address.layout();
  FLOTILLA_ASSIGN_OR_RETURN(const RunAssets assets, open_run_assets(store, layout, "", user_cache_folder()));
  EvaluationSubject subject;
  subject.source = address.text();
  subject.description = assets.description;
  subject.tokenizer = assets.tokenizer;
  subject.environment = assets.environment;
  const auto subscriber = Subscriber::create(store, layout, subject.description, assets.spec.learner_key,
                                             null_event_sink(), {.threads = core_count()});
  if (!version) {
    FLOTILLA_ASSIGN_OR_RETURN(const Head head, subscriber->poll());
    version = head.version;
  }
  FLOTILLA_ASSIGN_OR_RETURN(const PulledVersion pulled, subscriber->fetch(*version));
  subject.weights = pulled.state;
  subject.version = version;
  return subject;
}

Result<EvaluationSubject> open_model_file(const std::filesystem::path& path, std::string_view environment,
                                          const std::filesystem::path& environment_source) {
  FLOTILLA_ASSIGN_OR_RETURN(const Model model, load_model(path));
  EvaluationSubject subject;
  subject.source = path.string();
  subject.description = model.weights.description;
  subject.tokenizer = model.tokenizer;
  FLOTILLA_ASSIGN_OR_RETURN(GridState grid, make_grid(model.weights));
  subject.weights = std::make_shared<const GridState>(std::move(grid));
  FLOTILLA_ASSIGN_OR_RETURN(const Bytes artifact, build_environment_artifact(environment, environment_source));
  FLOTILLA_ASSIGN_OR_RETURN(subject.environment,
                            open_environment(environment, artifact, user_cache_folder() / "environments"));
  return subject;
}

Result<EvaluationSubject> open_subject(const std::string& text, std::string_view environment,
                                       const std::filesystem::path& environment_source) {
  FLOTILLA_ASSIGN_OR_RETURN(const SubjectAddress subject, SubjectAddress::parse(text));
  if (!subject.model.empty()) return open_model_file(subject.model, environment, environment_source);
  FLOTILLA_ASSIGN_OR_RETURN(const auto store, open_hub(subject.run));
  return open_run_version(*store, subject.run, subject.version);
}

Result<Evaluation> evaluate_subject(const EvaluationSubject& subject, const EvaluationRequest& request,
                                    const Terminal& terminal, std::stop_token stop) {
  FLOTILLA_ASSIGN_OR_RETURN(const EpisodeRules rules,
                            make_episode_rules(*subject.environment, *subject.tokenizer, subject.description));
  EngineOptions options;
  options.threads = request.threads > 0 ? request.threads : core_count();
  MemoryDemand demand;
  demand.engine = options;
  const std::uint64_t tasks = subject.environment->task_count(request.options.split);
  FLOTILLA_ASSIGN_OR_RETURN(demand.prompt_tokens, prompt_tokens_to_plan(rules, [&](std::uint64_t i) {
                              return subject.environment->task(request.options.split, i % tasks);
                            }));
  demand.groups = request.options.questions_per_sweep;
  demand.group_size = request.options.samples;
  demand.share_prefixes = request.options.share_prefixes;
  demand.rows_per_call = request.options.rows_per_call;
  FLOTILLA_ASSIGN_OR_RETURN(const MemoryPlan plan, plan_memory(subject.description, rules, demand, available_memory()));
  options.kv_blocks = plan.kv_blocks;
  FLOTILLA_ASSIGN_OR_RETURN(const auto engine, Engine::create(subject.description, options));
  FLOTILLA_RETURN_IF_ERROR(engine->load(*subject.weights));
  ProgressLine progress(std::cerr, terminal);
  const std::string name = subject.version ? fmt::format("version {}", subject.version->value()) : subject.source;
  return evaluate(
      *engine, rules, request.options,
      [&](std::int64_t done) {
        progress.update(fmt::format("evaluating {}: {}/{} questions", name, done, request.options.questions));
      },
      stop);
}

std::string evaluation_text(const Evaluation& evaluation) {
  std::string text;
  for (const auto& [k, estimate] : evaluation.pass_at_k) {
    text += fmt::format("{}pass@{} {:.3f} (standard error {:.3f})", text.empty() ? "" : ", ", k, estimate.value,
                        estimate.standard_error);
  }
  return text + fmt::format("; {} questions x {} samples in {:.0f} s, {:.0f} model tokens/s\n",
                            evaluation.questions.size(), evaluation.options.samples, evaluation.seconds,
                            static_cast<double>(evaluation.work.model_tokens) / std::max(evaluation.seconds, 1e-9));
}

}  // namespace flotilla
