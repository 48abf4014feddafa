#pragma once

#include "cli/commands.h"

namespace flotilla {

// `flotilla bench sync`: bytes, speed and memory of deltas, beside general compressors.
void add_bench_sync(CLI::App& bench, Action& action);

}  // namespace flotilla
