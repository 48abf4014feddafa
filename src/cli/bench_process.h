#pragma once

#include "cli/commands.h"

namespace flotilla {

// `flotilla bench start`: the time from the start of a process to its first token, as a worker gets there.
void add_bench_start(CLI::App& bench, Action& action);
// `flotilla bench memory`: what a process that sweeps holds in memory, beside what it may.
void add_bench_memory(CLI::App& bench, Action& action);

}  // namespace flotilla
