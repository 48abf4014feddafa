#pragma once

#include "base/hashing.h"
#include "engine/engine.h"

namespace flotilla {

inline constexpr char kIfADigestChanged[] =
    "The engine computes something else than before. If that is wanted, it is a new arithmetic: raise kArithmetic "
    "(engine/engine.h) and kRunArithmetic (sync/run_spec.h), define it in docs/design/arithmetic.md, and put the new "
    "digests where the old ones are. If not, find the kernel or the arrangement of the work that is wrong: the tests "
    "Kernels.* and EngineExactness.* compare each with the scalar reference.";

inline void update(Sha256& digest, const ReadoutResult& result) {
  digest.update_value(result.token);
  digest.update_value(result.logprob);
  digest.update_value(result.target_logprob);
  digest.update_value(result.most_likely);
}

}  // namespace flotilla
