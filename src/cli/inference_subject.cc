#include "cli/inference_subject.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "base/thread_pool.h"
#include "base/user_folders.h"
#include "model/weights.h"
#include "rollout/memory_plan.h"
#include "rollout/run_assets.h"
#include "sync/subscriber.h"
#include "telemetry/event_sink.h"

namespace flotilla {
namespace {

constexpr std::int64_t kPositionsMin = 256;
constexpr std::int64_t kRowsPerCall = 64;  // as SchedulerLimits has it
constexpr double kMiB = 1 << 20;

Result<InferenceSubject> open_run(const SubjectAddress& address) {
  FLOTILLA_ASSIGN_OR_RETURN(const auto store, open_hub(address.run));
  const HubLayout layout = address.run.layout();
  FLOTILLA_ASSIGN_OR_RETURN(const RunModel run, open_run_model(*store, layout, "", user_cache_folder()));
  InferenceSubject subject{.description = run.description,
                           .weights = nullptr,
                           .tokenizer = run.tokenizer,
                           .name = {},
                           .version = address.version};
  const auto subscriber = Subscriber::create(*store, layout, run.description, run.spec.learner_key, null_event_sink(),
                                             {.threads = core_count()});
  if (!subject.version) {
    FLOTILLA_ASSIGN_OR_RETURN(const Head head, subscriber->poll());
    subject.version = head.version;
  }
  FLOTILLA_ASSIGN_OR_RETURN(const PulledVersion pulled, subscriber->fetch(*subject.version));
  subject.weights = pulled.state;
  subject.name = fmt::format("{}/{}@{}", address.run.owner, address.run.run, subject.version->value());
  return subject;
}

}  // namespace

Result<InferenceSubject> open_inference_subject(const SubjectAddress& address) {
  if (address.model.empty()) return open_run(address);
  const std::filesystem::path path(address.model);
  FLOTILLA_ASSIGN_OR_RETURN(const Model model, load_model(path));
  FLOTILLA_ASSIGN_OR_RETURN(GridState grid, make_grid(model.weights));
  // A folder may be named with a slash at its end.
  const std::filesystem::path named = path.has_filename() ? path : path.parent_path();
  return InferenceSubject{.description = model.weights.description,
                          .weights = std::make_shared<const GridState>(std::move(grid)),
                          .tokenizer = model.tokenizer,
                          .name = named.extension() == ".gguf" ? named.stem().string() : named.filename().string(),
                          .version = std::nullopt};
}

Result<std::unique_ptr<Engine>> make_inference_engine(InferenceSubject& subject, int threads, std::int64_t kv_tokens,
                                                      std::int64_t kv_mib) {
  EngineOptions options;
  options.threads = threads > 0 ? threads : core_count();
  const auto bytes = [&](std::int64_t kv_blocks) {
    options.kv_blocks = kv_blocks;
    return Engine::memory_bytes(subject.description, options, kRowsPerCall);
  };
  const std::int64_t block_bytes = bytes(1) - bytes(0);
  const std::int64_t room = kv_mib > 0 ? kv_mib << 20 : (available_memory() - bytes(0)) / 4 * 3;
  const std::int64_t wanted = (kv_tokens + kBlockTokens - 1) / kBlockTokens;
  const std::int64_t least = std::min(kPositionsMin / kBlockTokens, wanted);
  options.kv_blocks = std::min(wanted, room / block_bytes);
  if (options.kv_blocks < least) {
    return resource_exhausted(fmt::format(
        "not enough memory: keys and values of {} positions take {:.0f} MiB, {:.0f} may be used", least * kBlockTokens,
        static_cast<double>(least * block_bytes) / kMiB, static_cast<double>(std::max<std::int64_t>(room, 0)) / kMiB));
  }
  FLOTILLA_ASSIGN_OR_RETURN(auto engine, Engine::create(subject.description, options));
  FLOTILLA_RETURN_IF_ERROR(engine->load(*subject.weights));
  subject.weights.reset();
  return engine;
}

}  // namespace flotilla
