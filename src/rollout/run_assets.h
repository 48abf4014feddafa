#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string_view>

#include "base/status.h"
#include "env/environment.h"
#include "model/description.h"
#include "model/tokenizer.h"
#include "rollout/episode_builder.h"
#include "store/object_store.h"
#include "sync/hub_layout.h"
#include "sync/run_spec.h"

namespace flotilla {

using EnvironmentOpener = std::function<Result<std::unique_ptr<Environment>>(std::string_view name, ByteSpan artifact,
                                                                             const std::filesystem::path& cache)>;

// What weights of a run need to be used at all.
struct RunModel {
  RunSpec spec;
  ModelDescription description;
  std::shared_ptr<const Tokenizer> tokenizer;
};

// What a worker or a verifier knows about a run before it knows any weights. The rules point to the other members'
// targets.
struct RunAssets : RunModel {
  std::shared_ptr<const Environment> environment;
  EpisodeRules rules;
};

// Reads run.json and the artifacts that it names, which are kept in `cache` by their digest. failed_precondition when
// the run needs another program: an unknown format, arithmetic or scale group, an environment that this one builds
// differently; permission_denied when the learner's key does not have the fingerprint (any when empty).
Result<RunAssets> open_run_assets(ObjectStore& store, const HubLayout& layout, std::string_view fingerprint,
                                  const std::filesystem::path& cache, const EnvironmentOpener& open = open_environment);

// The same without the environment.
Result<RunModel> open_run_model(ObjectStore& store, const HubLayout& layout, std::string_view fingerprint,
                                const std::filesystem::path& cache);

// An artifact from <cache>/artifacts, or from the hub and then kept there. Bytes in the cache that do not have the
// digest are fetched again.
Result<Bytes> cached_artifact(ObjectStore& store, const HubLayout& layout, const Sha256Digest& digest,
                              const std::filesystem::path& cache);

}  // namespace flotilla
