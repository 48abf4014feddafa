#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "engine/engine.h"
#include "rollout/group.h"
#include "rollout/run_assets.h"
#include "rollout/verify.h"

namespace flotilla {

// How fast groups are verified, beside other ways to compute the same tokens on the same engine. Seconds, one entry a
// round; a round measures each of them once, in turns.
struct VerifySpeed {
  std::int64_t groups = 0;
  std::int64_t episodes = 0;
  std::int64_t tokens = 0;  // that a verification, the prefill and the sweep compute: each prompt once
  std::int64_t model_tokens = 0;
  std::int64_t decoded = 0;     // tokens that the decoding of one sequence computes
  std::vector<double> verify;   // from the files' bytes to the verdict
  std::vector<double> prefill;  // the same tokens with the same readouts, as plain prompts of at most 512
  std::vector<double> sweep;    // that makes the groups: the same tokens, decoded together
  std::vector<double> decode;   // the first episode alone, token by token, without its prompt
};

// The groups that can be measured together: of `files`, the first at most `most` of the first version that are of one
// version throughout.
Result<std::vector<Group>> groups_of_one_version(std::span<const Bytes> files, std::size_t most);

// `groups` as groups_of_one_version() gives them, at least one; after one round that does not count, `rounds` (> 0) are
// measured. The engine has no open sequences, and its KV pool holds the sweep, or it slows down. Errors: what the
// verification or the engine says; data_loss when the sweep makes anything else than the groups.
Result<VerifySpeed> measure_verification(const RunAssets& assets, Engine& engine, const GroupVerifier::Weights& weights,
                                         std::span<const Group> groups, int rounds,
                                         const std::function<void(int round)>& progress,
                                         const Clock& clock = system_clock());

// A table for people.
std::string verify_speed_text(const VerifySpeed& speed);

}  // namespace flotilla
