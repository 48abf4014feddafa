#pragma once

#include <filesystem>
#include <string>

#include "base/status.h"
#include "cli/run_address.h"
#include "config/run_config.h"
#include "rollout/evaluate.h"
#include "store/object_store.h"

namespace flotilla {

// The demo's run on this machine: a folder with hub, configuration, logs and result.
struct DemoRun {
  std::filesystem::path folder;
  RunAddress address;
  RunConfig config;
};

// configs/demo.toml as it was when the program was built, then `overrides`; a folder below `out` that no earlier demo
// has used; the model that a package ships (FLOTILLA_VENV), unless the configuration names one.
Result<DemoRun> prepare_demo(const std::filesystem::path& out, const std::vector<std::string>& overrides);

// Starts the learner and the workers and shows how they get on until the learner has finished. A worker that dies is
// reported and missed by nobody; a learner that is killed is started again and resumes, a few times. Returns the first
// version: 0, unless a learner was killed while it published that.
Result<Version> run_demo_fleet(const DemoRun& demo, std::stop_token stop);

struct DemoResult {
  Evaluation before;
  Evaluation after;
  Version first;
  Version last;
  std::map<std::int32_t, PairedEstimate> comparison;
};

// The versions `first` and last on the same questions with the same seeds.
Result<DemoResult> evaluate_demo(ObjectStore& store, const DemoRun& demo, Version first, std::stop_token stop);

// The table, the plot and the episodes to read; and result.json. Returns false when the improvement is within the
// noise: its paired difference is at most 2.5 standard errors.
Result<bool> report_demo(ObjectStore& store, const DemoRun& demo, const DemoResult& result, double seconds);

}  // namespace flotilla
