#pragma once

#include <span>
#include <string>

#include "cli/run_summary.h"
#include "store/object_store.h"
#include "sync/hub_layout.h"
#include "telemetry/terminal.h"

namespace flotilla {

// The parts of what `flotilla show` and the demo print. Each ends with a line feed; empty when there is nothing to
// tell.
std::string reward_plot(const RunSummary& summary, const Terminal& terminal);
std::string steps_table(const RunSummary& summary, std::size_t last);
std::string workers_table(const RunSummary& summary);
std::string weights_report(const RunSummary& summary);
// Staleness, reuse against its limit, gate and ratio figures.
std::string training_report(const RunSummary& summary);

// How far the newest epoch of a run with claims is, of all objects below claims/.
std::string claims_report(const HubLayout& layout, std::span<const ObjectInfo> claims);

// How things stand, in one line: step, reward, staleness, tokens/s of each worker, delta bytes.
std::string progress_text(const RunSummary& summary);

}  // namespace flotilla
