#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/ids.h"
#include "rollout/group.h"

namespace flotilla {

// What the model is to predict after one token of a sequence.
struct TrainingTarget {
  std::int32_t row = 0;  // index in TrainingSequence::tokens of the token before it
  TokenId token = 0;
  float worker_logprob = 0;  // log mu
  float advantage = 0;
};

// One sequence of a forward pass: a prompt and the branches that go on from it. A token of a branch sees the prompt and
// what came before it in its own branch, and its position goes on from the prompt's end, so that each branch is
// computed as if it stood alone behind the prompt. A prompt may be empty, and so may the list of branches.
struct TrainingSequence {
  std::vector<TokenId> tokens;            // [T]: the prompt, then the branches
  std::int32_t prompt = 0;                // tokens in the prompt
  std::vector<std::int32_t> branch_ends;  // rising; branch i is [branch_ends[i - 1] or prompt, branch_ends[i])
  std::vector<TrainingTarget> targets;    // rows rise

  std::int32_t size() const { return static_cast<std::int32_t>(tokens.size()); }
};

struct PackOptions {
  bool share_prompt = true;          // false: one sequence an episode
  bool mask_truncated = false;       // episodes that ran out of tokens have no targets
  bool skip_without_signal = false;  // leave out episodes whose advantage is 0
  std::int32_t max_tokens = 4096;    // of one sequence; a larger group becomes several with the same prompt
};

// The model tokens of the episodes as targets; environment tokens are context only. What follows an episode's last
// target is left out. An episode that alone exceeds max_tokens still becomes a sequence. `advantages` has one entry an
// episode; the group has passed check_group().
std::vector<TrainingSequence> pack_group(const Group& group, std::span<const float> advantages,
                                         const PackOptions& options);

// Joins neighbouring sequences of at most one branch each, whatever their prompts: the longest common beginning of the
// prompts becomes the prompt, and each rest a branch, so that what all begin with is computed once. A joined sequence
// has at most max_tokens tokens, or is one of the given ones. A sequence that would make the others share less than it
// saves begins the next one. The same targets in the same order of sequences.
std::vector<TrainingSequence> share_beginnings(std::span<const TrainingSequence> sequences, std::int32_t max_tokens);

// Neighbouring sequences that are computed together: half-open ranges whose tokens together are at most max_tokens, or
// a single longer sequence.
struct MicroBatch {
  std::size_t begin = 0;
  std::size_t end = 0;
};
std::vector<MicroBatch> micro_batches(std::span<const TrainingSequence> sequences, std::int32_t max_tokens);

}  // namespace flotilla
