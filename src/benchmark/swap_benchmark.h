#pragma once

#include <vector>

#include "base/status.h"
#include "engine/engine.h"

namespace flotilla {

// What a new version costs a worker that runs.
struct SwapTime {
  double pull_seconds = 0;  // fetching its delta and checking what it makes of the version before
  double load_seconds = 0;  // making that again, into the engine
};

// The version after `state`, as a step of training leaves it: one in 256 of a matrix' integers moves by one.
GridState next_version(GridState state);

// Follows a run in memory as a worker does: `state` is its version 0, and so many come after it, the last of which the
// engine holds in the end. The pulls take `threads` threads. Errors are those of publishing, pulling and loading.
Result<std::vector<SwapTime>> measure_swaps(Engine& engine, GridState state, int threads, int versions);

}  // namespace flotilla
