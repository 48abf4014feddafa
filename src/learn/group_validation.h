#pragma once

#include <functional>

#include "env/environment.h"
#include "model/tokenizer.h"
#include "rollout/group.h"
#include "sync/run_spec.h"

namespace flotilla {

// What every group of a run has to be. The pointers outlive it.
struct GroupExpectations {
  const RunSpec* run = nullptr;
  const Environment* environment = nullptr;
  const Tokenizer* tokenizer = nullptr;
  Sha256Digest tokenizer_digest;
  Sha256Digest corpus;          // of the environment's artifact
  std::int32_t vocabulary = 0;  // of the model
  std::int32_t context = 0;     // positions that the model has
};

// The state digest of a published version. not_found: there is no such version; any other error: cannot be known now.
using StateOfVersion = std::function<Result<Sha256Digest>(Version)>;

// What the learner asks of a group before it trains on it, beyond check_group(): it is of this run, seed, tokenizer,
// environment and corpus; sampled, and its weights changed, as the run says; its task is the one assigned to its worker
// and counter, its prompt that task's; ids lie in the vocabulary, lengths within the limits; every version was
// published, with that state. invalid_argument says what is wrong; another code means that `state_of` could not answer.
Status validate_group(const Group& group, const GroupExpectations& expected, const StateOfVersion& state_of);

}  // namespace flotilla
