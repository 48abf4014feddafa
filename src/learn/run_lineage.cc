#include "learn/run_lineage.h"

#include <algorithm>
#include <limits>
#include <ranges>
#include <utility>

#include <fmt/format.h>

#include "base/log.h"
#include "base/thread_pool.h"
#include "config/config.h"
#include "learn/checkpoint.h"
#include "learn/hub_rollout_source.h"
#include "learn/replay_buffer.h"
#include "sync/head.h"
#include "sync/publisher.h"
#include "sync/subscriber.h"

namespace flotilla {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kKeepAll = std::numeric_limits<std::int64_t>::max() / 2;  // of checkpoints

// A learner as it lies in a checkpoint.
struct StoredLearner {
  explicit StoredLearner(const ModelDescription& model) : description(model) {
    for (const TensorSpec& spec : model.tensors) {
      masters.emplace_back(spec.size());
      mean.emplace_back(spec.size());
      mean_square.emplace_back(spec.size());
    }
  }
  TrainerState trainer() {
    return {{masters.begin(), masters.end()}, {mean.begin(), mean.end()}, {mean_square.begin(), mean_square.end()}};
  }
  // Nothing but the weights of a version.
  void begin_at(std::shared_ptr<const GridState> state) {
    masters = dequantize(description, *state).tensors;
    for (auto* moments : {&mean, &mean_square}) {
      for (auto& tensor : *moments) std::ranges::fill(tensor, 0.0f);
    }
    memory.progress.optimizer_steps = 0;
    memory.grid = std::move(state);
  }

  const ModelDescription& description;
  LearnerMemory memory;
  std::vector<std::vector<float>> masters, mean, mean_square;
};

// Not one that make_checkpoint() made before, which has no more than the hub.
bool is_whole(const StoredLearner& learner) {
  return learner.memory.progress.optimizer_steps > 0 ||
         learner.masters != dequantize(learner.description, *learner.memory.grid).tensors;
}

CheckpointFolder checkpoints_of(const fs::path& folder, const ModelDescription& description) {
  return {folder / "checkpoints", description, kKeepAll};
}

// The number of the newest checkpoint that published this state last; the learner is as it lies there.
Result<std::optional<std::uint64_t>> find_checkpoint(const CheckpointFolder& checkpoints, const std::string& run,
                                                     const Sha256Digest& state, StoredLearner& learner) {
  FLOTILLA_ASSIGN_OR_RETURN(const std::vector<std::uint64_t> numbers, checkpoints.list());
  for (const std::uint64_t number : std::views::reverse(numbers)) {
    auto memory = checkpoints.load(number, run, learner.trainer());
    if (!memory.ok()) {
      log_warning("learn", "checkpoint {} is not used: {}", number, memory.status().to_string());
      continue;
    }
    if (!memory->grid || state_digest(learner.description, *memory->grid, core_count()) != state) continue;
    learner.memory = *std::move(memory);
    return std::optional(number);
  }
  return std::optional<std::uint64_t>();
}

Result<Head> read_head(ObjectStore& store, const HubLayout& layout, const PublicKey& learner) {
  FLOTILLA_ASSIGN_OR_RETURN(const Object object, store.get(layout.head()));
  return head_from_json(as_text(object.bytes), learner);
}

Result<std::shared_ptr<const GridState>> fetch_state(const RunSource& run, Version version, EventSink& events) {
  const auto subscriber = Subscriber::create(run.store, {run.spec.run}, run.description, run.spec.learner_key, events,
                                             {.threads = core_count()});
  FLOTILLA_ASSIGN_OR_RETURN(PulledVersion pulled, subscriber->fetch(version));
  return std::move(pulled.state);
}

// What the learner knows of groups, and none to train on.
Result<Bytes> only_known_groups(const Bytes& replay) {
  FLOTILLA_ASSIGN_OR_RETURN(ReplayBuffer buffer, ReplayBuffer::restore({}, replay));
  buffer.expire(Version(std::numeric_limits<std::int64_t>::max()));
  return buffer.serialize();
}

// A checkpoint out of a version on the hub and what the newest checkpoint knows besides. Returns its number.
Result<std::uint64_t> make_checkpoint(const RunSource& run, CheckpointFolder& checkpoints, Version to,
                                      std::uint64_t step, StoredLearner& learner, EventSink& events) {
  FLOTILLA_ASSIGN_OR_RETURN(auto newest, checkpoints.load(run.spec.run, learner.trainer()));
  LearnerMemory& memory = learner.memory;
  if (newest) {
    memory = *std::move(newest);
    FLOTILLA_ASSIGN_OR_RETURN(memory.replay, only_known_groups(memory.replay));
    memory.groups.clear();
  } else {
    memory.progress.run = run.spec.run;
    memory.replay = ReplayBuffer({}).serialize();
  }
  FLOTILLA_ASSIGN_OR_RETURN(auto state, fetch_state(run, to, events));
  learner.begin_at(std::move(state));
  if (!memory.version0) {
    FLOTILLA_ASSIGN_OR_RETURN(memory.version0, fetch_state(run, Version(0), events).with_context("version 0, for KL"));
  }
  memory.progress.steps = memory.progress.published_steps = step;
  memory.progress.finished = false;
  const std::uint64_t number = memory.progress.warmup_steps + step;
  // One of this number that has other weights would be lost.
  FLOTILLA_ASSIGN_OR_RETURN(const auto numbers, checkpoints.list());
  if (std::ranges::find(numbers, number) != numbers.end()) {
    FLOTILLA_RETURN_IF_ERROR(checkpoints.set_aside_from(number).status());
  }
  FLOTILLA_RETURN_IF_ERROR(checkpoints.save(memory, learner.trainer()).status());
  return number;
}

}  // namespace

void set_sampling(RunSpec& spec, const RunConfig& config) {
  spec.seed = config.run.seed;
  spec.group_size = config.rollout.group_size;
  spec.temperature = config.rollout.temperature;
  spec.top_k = config.rollout.top_k;
  spec.top_p = config.rollout.top_p;
  spec.swap = config.rollout.swap;
  spec.claims = config.rollout.claims ? kClaimTasksMax : 0;
}

Result<Rollback> roll_back(const RunSource& run, std::shared_ptr<const SigningKey> key, const fs::path& folder,
                           Version to, EventSink& events) {
  const HubLayout layout{run.spec.run};
  FLOTILLA_ASSIGN_OR_RETURN(const Head head, read_head(run.store, layout, run.spec.learner_key));
  if (to > head.version) {
    return not_found(fmt::format("version {} of {} is not there yet: the newest is {}", to.value(), run.spec.run,
                                 head.version.value()));
  }
  HubVersions versions(run.store, layout, run.spec.learner_key);
  FLOTILLA_ASSIGN_OR_RETURN(const Sha256Digest state,
                            versions.state_of(to).with_context(fmt::format("version {}", to.value())));
  FLOTILLA_ASSIGN_OR_RETURN(const bool abandoned, versions.is_abandoned(to, head.version));
  if (abandoned) {
    return failed_precondition(fmt::format(
        "the run has gone back behind version {} before: its groups would count for another lineage; fork it",
        to.value()));
  }
  Rollback result{.from = head.version, .published = {}, .step = 0, .whole = false, .set_aside = {}};
  FLOTILLA_ASSIGN_OR_RETURN(result.step, versions.step_of(to));
  CheckpointFolder checkpoints = checkpoints_of(folder, run.description);
  StoredLearner learner(run.description);
  FLOTILLA_ASSIGN_OR_RETURN(auto number, find_checkpoint(checkpoints, run.spec.run, state, learner));
  result.whole = number && is_whole(learner);
  if (!number) {
    FLOTILLA_ASSIGN_OR_RETURN(number, make_checkpoint(run, checkpoints, to, result.step, learner, events));
  }
  FLOTILLA_ASSIGN_OR_RETURN(result.set_aside, checkpoints.set_aside_from(*number + 1));

  FLOTILLA_ASSIGN_OR_RETURN(const auto publisher,
                            Publisher::open(run.store, layout, run.description, std::move(key), {}, events));
  FLOTILLA_RETURN_IF_ERROR(publisher->update_head(RunState::kPaused, 0));
  FLOTILLA_ASSIGN_OR_RETURN(const Sha256Digest newest, versions.state_of(head.version));
  result.published = head.version;
  if (newest != state) {
    FLOTILLA_ASSIGN_OR_RETURN(const PublishReport done,
                              publisher->publish(*learner.memory.grid, learner.memory.progress.published_steps));
    result.published = done.version;
  }
  return result;
}

Result<Fork> fork_run(const RunSource& source, Version version, const fs::path& source_folder, ObjectStore& store,
                      const RunConfig& config, std::shared_ptr<const SigningKey> key, EventSink& events) {
  const HubLayout layout{config.run.name};
  const Status head = store.get(layout.head()).status();
  if (head.ok()) return already_exists(fmt::format("run {} is there already", config.run.name));
  if (head.code() != StatusCode::kNotFound) return head;
  CheckpointFolder checkpoints = checkpoints_of(config.run.folder, source.description);
  FLOTILLA_ASSIGN_OR_RETURN(const auto numbers, checkpoints.list());
  if (!numbers.empty() && numbers.back() > 0) {
    return failed_precondition(fmt::format("{} has checkpoints of another learner", config.run.folder.string()));
  }

  Fork result;
  HubVersions versions(source.store, {source.spec.run}, source.spec.learner_key);
  FLOTILLA_ASSIGN_OR_RETURN(auto state, fetch_state(source, version, events));
  FLOTILLA_ASSIGN_OR_RETURN(result.step, versions.step_of(version));
  FLOTILLA_ASSIGN_OR_RETURN(const Sha256Digest digest, versions.state_of(version));
  StoredLearner learner(source.description);
  if (!source_folder.empty()) {
    const CheckpointFolder theirs = checkpoints_of(source_folder, source.description);
    FLOTILLA_ASSIGN_OR_RETURN(const auto number, find_checkpoint(theirs, source.spec.run, digest, learner));
    result.whole = number && is_whole(learner);
  }
  if (!result.whole) learner.begin_at(state);
  LearnerMemory first;
  first.progress.run = config.run.name;
  first.progress.optimizer_steps = learner.memory.progress.optimizer_steps;
  first.version0 = first.grid = state;
  first.replay = ReplayBuffer({}).serialize();
  learner.memory = std::move(first);
  FLOTILLA_RETURN_IF_ERROR(checkpoints.save(learner.memory, learner.trainer()).status());
  FLOTILLA_RETURN_IF_ERROR(write_file_atomically(config.run.folder / "run.toml", config_toml(config)));

  for (const Sha256Digest& artifact : {source.spec.model_config, source.spec.tokenizer, source.spec.environment}) {
    FLOTILLA_ASSIGN_OR_RETURN(const Bytes bytes, get_artifact(source.store, {source.spec.run}, artifact));
    FLOTILLA_RETURN_IF_ERROR(put_artifact(store, layout, bytes).status());
  }
  RunSpec spec = source.spec;
  spec.run = config.run.name;
  set_sampling(spec, config);
  spec.learner_key = key->public_key();
  FLOTILLA_RETURN_IF_ERROR(publish_run_spec(store, layout, spec, *key));
  FLOTILLA_ASSIGN_OR_RETURN(const auto publisher,
                            Publisher::open(store, layout, source.description, std::move(key), {}, events));
  FLOTILLA_RETURN_IF_ERROR(publisher->update_head(RunState::kPaused, 0));  // kept for the first head
  FLOTILLA_RETURN_IF_ERROR(publisher->publish(*state, 0).status());
  return result;
}

}  // namespace flotilla
