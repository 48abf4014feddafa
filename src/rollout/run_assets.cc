#include "rollout/run_assets.h"

#include <utility>

#include <fmt/format.h>

#include "base/files.h"
#include "base/log.h"
#include "engine/engine.h"
#include "model/grid.h"
#include "sync/subscriber.h"

namespace flotilla {

static_assert(kRunArithmetic == kArithmetic, "runs are published for the arithmetic that the engine has");

Result<Bytes> cached_artifact(ObjectStore& store, const HubLayout& layout, const Sha256Digest& digest,
                              const std::filesystem::path& cache) {
  const std::filesystem::path path = cache / "artifacts" / digest.to_hex();
  if (auto cached = read_file(path); cached.ok() && sha256(*cached) == digest) return cached;
  FLOTILLA_ASSIGN_OR_RETURN(Bytes bytes, get_artifact(store, layout, digest));
  if (const Status kept = write_file_atomically(path, bytes); !kept.ok()) {
    log_warning("rollout", "artifact is not kept: {}", kept.to_string());
  }
  return bytes;
}

Result<RunModel> open_run_model(ObjectStore& store, const HubLayout& layout, std::string_view fingerprint,
                                const std::filesystem::path& cache) {
  RunModel model;
  FLOTILLA_ASSIGN_OR_RETURN(model.spec, fetch_run_spec(store, layout, fingerprint));
  const RunSpec& spec = model.spec;
  if (spec.arithmetic != kArithmetic || spec.scale_group != kScaleGroup) {
    return failed_precondition(
        fmt::format("run {} has arithmetic {} and scale groups of {}, this program knows {} and {}: upgrade it",
                    spec.run, spec.arithmetic, spec.scale_group, kArithmetic, kScaleGroup));
  }
  FLOTILLA_ASSIGN_OR_RETURN(const Bytes config, cached_artifact(store, layout, spec.model_config, cache));
  FLOTILLA_ASSIGN_OR_RETURN(model.description,
                            ModelDescription::from_config_json(as_text(config)).with_context("the run's model"));
  FLOTILLA_ASSIGN_OR_RETURN(const Bytes tokenizer, cached_artifact(store, layout, spec.tokenizer, cache));
  FLOTILLA_ASSIGN_OR_RETURN(model.tokenizer,
                            Tokenizer::from_json(as_text(tokenizer)).with_context("the run's tokenizer"));
  return model;
}

Result<RunAssets> open_run_assets(ObjectStore& store, const HubLayout& layout, std::string_view fingerprint,
                                  const std::filesystem::path& cache, const EnvironmentOpener& open) {
  FLOTILLA_ASSIGN_OR_RETURN(RunModel model, open_run_model(store, layout, fingerprint, cache));
  RunAssets assets{std::move(model), {}, {}};
  const RunSpec& spec = assets.spec;
  FLOTILLA_ASSIGN_OR_RETURN(const Bytes artifact, cached_artifact(store, layout, spec.environment, cache));
  FLOTILLA_ASSIGN_OR_RETURN(assets.environment,
                            open(spec.environment_name, artifact, cache).with_context("the run's environment"));
  if (assets.environment->digest() != spec.environment_digest) {
    return failed_precondition(fmt::format("environment {} has the digest {} here, {} in run {}: upgrade this program",
                                           spec.environment_name, assets.environment->digest().to_hex(),
                                           spec.environment_digest.to_hex(), spec.run));
  }
  if (assets.environment->task_count(Split::kTrain) == 0) {
    return invalid_argument(fmt::format("environment {} has no tasks", spec.environment_name));
  }
  FLOTILLA_ASSIGN_OR_RETURN(assets.rules,
                            make_episode_rules(*assets.environment, *assets.tokenizer, assets.description));
  return assets;
}

}  // namespace flotilla
