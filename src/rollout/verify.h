#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/status.h"
#include "engine/engine.h"
#include "rollout/group.h"
#include "rollout/run_assets.h"
#include "sync/subscriber.h"

namespace flotilla {

struct VerifyReport {
  std::int64_t episodes = 0;
  std::int64_t prompt_tokens = 0;  // of the one prompt
  std::int64_t model_tokens = 0;   // replayed, each with its logprob
  std::int64_t environment_tokens = 0;
  std::int64_t versions = 0;
};

// Replays groups: whatever fixes a group's content is computed again and compared exactly, without a tolerance.
//
// 1. The group is whole (check_group), of this run: seed, sampling, digests, group size, versions that change as it
//    allows; its task is the one that the run assigns to its worker and counter; its prompt is that task's.
// 2. Environment and rules: each episode is built again from its model tokens; observations, turns, end, reward and
//    metrics are equal.
// 3. Weights: each version that the group names has the recorded state digest, and computes the tokens of its spans in
//    the context that they say: at every position that it wrote it gives the recorded token from the sampler and the
//    recorded logprob, bit for bit (span_replay.h).
//
// One thread.
class GroupVerifier {
 public:
  // The state of a version, for example Subscriber::fetch. A version is always the same state.
  using Weights = std::function<Result<PulledVersion>(Version)>;

  // All outlive the verifier. The engine has no open sequences, and its weights are replaced; its KV pool holds
  // sweep_blocks_min(), and the more it holds the faster it goes.
  GroupVerifier(const RunAssets& assets, Engine& engine, Weights weights)
      : assets_(assets), engine_(engine), weights_(std::move(weights)) {}

  // A report: the group is what an honest worker makes. invalid_argument: it is not, with the first difference: which
  // episode, which position, what was recorded and what the replay gives. Any other error: it cannot be told
  // (not_found: a version is no longer there; failed_precondition: the backend was approximate).
  Result<VerifyReport> verify(const Group& group);
  // The same for several at once, which is faster; one result a group.
  std::vector<Result<VerifyReport>> verify(std::span<const Group> groups);

 private:
  Status check_unit(const Group& group) const;
  Result<Task> check_task(const Group& group) const;
  Status replay_rules(const Group& group, const Task& task) const;
  Status check_without_weights(const Group& group) const;
  Result<Sha256Digest> load(Version version);

  const RunAssets& assets_;
  Engine& engine_;
  const Weights weights_;
  std::optional<std::pair<Version, Sha256Digest>> loaded_;  // that the engine holds
};

}  // namespace flotilla
