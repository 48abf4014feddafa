#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "config/run_config.h"
#include "model/description.h"
#include "store/object_store.h"
#include "sync/run_spec.h"
#include "telemetry/event_sink.h"

namespace flotilla {

// Going back in a run, and going on from it as another one. Without libtorch: a learner begins from the checkpoint that
// is written here. No learner of the run, or of the new one, may be at work.

// What of run.json a configuration says: seed, groups, sampling, claims.
void set_sampling(RunSpec& spec, const RunConfig& config);

// A run that is there.
struct RunSource {
  ObjectStore& store;
  RunSpec spec;  // its run.json
  ModelDescription description;
};

struct Rollback {
  Version from;       // head before
  Version published;  // the version that has the earlier state now
  std::uint64_t step = 0;
  bool whole = false;                    // masters and optimizer are those of a checkpoint; else only weights came back
  std::vector<std::uint64_t> set_aside;  // numbers of the checkpoints that were given up
};
// The run goes on from version `to`. The newest checkpoint in `folder`, the learner's, that published it last is the
// one to go on from, and all later ones are set aside (CheckpointFolder::set_aside_from). Without one, a checkpoint is
// made out of the version on the hub: masters are the grid's values and the optimizer begins anew; groups that were
// ever admitted are not trained on again. Then the state is published under the next free number, as an anchor, and
// head is paused until a learner comes. What the versions in between made is not trained on
// (HubVersions::is_abandoned).
//
// not_found when there is no such version yet or the hub does not have it any more; failed_precondition when the run
// has gone back behind it before. After any error the same call goes on.
Result<Rollback> roll_back(const RunSource& run, std::shared_ptr<const SigningKey> key,
                           const std::filesystem::path& folder, Version to, EventSink& events);

struct Fork {
  std::uint64_t step = 0;  // of the run that was forked
  bool whole = false;      // masters and optimizer are those of a checkpoint
};
// Begins config.run on `store` with the version of another run as its version 0: its artifacts, run.json signed by
// `key`, with the sampling of `config`, version 0, a paused head; and in config.run.folder a first checkpoint and
// run.toml. Masters and AdamW's state come from a checkpoint of `source_folder` (may be empty) that published the
// version last; else masters are the grid's values. Steps, budget and groups begin at nothing.
//
// already_exists when the new run has a version; failed_precondition when its folder has later checkpoints. After any
// other error the same call goes on.
Result<Fork> fork_run(const RunSource& source, Version version, const std::filesystem::path& source_folder,
                      ObjectStore& store, const RunConfig& config, std::shared_ptr<const SigningKey> key,
                      EventSink& events);

}  // namespace flotilla
