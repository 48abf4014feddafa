#pragma once

#include <cstdint>

#include "base/status.h"
#include "engine/engine.h"

namespace flotilla {

// What a new version costs a worker that runs.
struct SwapTime {
  double apply_seconds = 0;  // the delta, and the digest of the state that it gives
  double load_seconds = 0;   // of that state into the engine, in the place of the one before
};

// The version after `state`, as a step of training leaves it: one in 256 of a matrix' integers moves by one.
GridState next_version(GridState state);

// Applies the delta to `before` and loads the result, with `threads` for the digest. Errors are those of apply_delta()
// and of the engine, which holds the new state after.
Result<SwapTime> measure_swap(Engine& engine, const GridState& before, ByteSpan delta, int threads);

}  // namespace flotilla
