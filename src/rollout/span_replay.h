#pragma once

#include <functional>
#include <span>

#include "base/status.h"
#include "engine/engine.h"
#include "rollout/group.h"

namespace flotilla {

// One group of a replay and what came of it.
struct ReplayedGroup {
  const Group* group = nullptr;
  Status status;        // of the replay: invalid_argument names the first difference
  bool shared = false;  // the error is that of a forward call that other groups were in too
};

// Brings a version's weights into the engine, whose open sequences stay, and says which state it is.
using LoadVersion = std::function<Result<Sha256Digest>(Version)>;

// Computes every sampled token of the groups again, by spans: the version of each, with the context that it says, has
// to give the recorded token from the sampler and the recorded logprob, bit for bit. As many episodes as the KV pool
// holds are computed together in wide forward calls, version after version, each prompt once a version and forked.
// Groups that already have an error are left out. Any other error than invalid_argument: it cannot be told about this
// group.
//
// The groups pass check_group() and have no id outside the vocabulary; the engine has no open sequences before and
// after, and holds one of the last versions loaded.
void replay_spans(Engine& engine, const LoadVersion& load, std::span<ReplayedGroup> groups);

}  // namespace flotilla
