#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <stop_token>
#include <string>

#include "base/clock.h"
#include "base/status.h"
#include "engine/engine.h"
#include "rollout/courtesy.h"
#include "rollout/machine_use.h"
#include "rollout/retry.h"
#include "rollout/run_assets.h"
#include "rollout/sweep.h"
#include "store/object_store.h"
#include "sync/hub_layout.h"
#include "sync/signing.h"
#include "telemetry/event_sink.h"

namespace flotilla {

struct WorkerOptions {
  HubLayout layout;
  std::string learner_fingerprint;        // whom to believe; empty: whoever made the run
  std::shared_ptr<const SigningKey> key;  // who the worker is: worker_id()
  std::string operator_name;              // [A-Za-z0-9._-]; empty: the worker itself
  std::filesystem::path cache_folder;     // artifacts and indexes; may be shared by workers
  std::filesystem::path
      state_folder;  // WorkerCounter and claims; may be shared by workers, not by hubs with runs of one name
  int threads = 1;
  Isa isa = Isa::kAuto;
  std::int32_t sweep_groups = 0;    // groups that are decoded together, at most; 0: OperatingPoint chooses
  std::int32_t rows_per_call = 64;  // SweepSettings
  bool refill = false;  // groups are added to a sweep in the places of episodes that have ended; needs sweep_groups
  std::int64_t memory_limit_bytes = 0;          // 0: what the machine has available
  Politeness politeness = Politeness::kPolite;  // Courtesy; the priority of this thread is the caller's to lower
  // A look at the machine for Courtesy; empty: nothing limits the worker.
  std::function<MachineUse(std::chrono::nanoseconds now)> machine_use;
  std::chrono::milliseconds look_interval{1'000};  // between two looks, also at the worker's own memory
  std::int32_t upload_queue = 16;                  // no sweep begins while so many groups wait for upload
  std::chrono::milliseconds poll{1'000};
  std::chrono::milliseconds patience{30'000};         // Wish
  std::chrono::milliseconds status_interval{60'000};  // between two status objects
  // Of a run with claims: a worker whose status does not change for so long has lost its tasks to others. The same for
  // all workers of a run.
  std::chrono::milliseconds lease{15 * 60'000};
  std::chrono::milliseconds stop_grace{10'000};  // for the sweep and the uploads under way when asked to stop
  RetryPolicy retry;
  EnvironmentOpener open_environment = flotilla::open_environment;
};

struct WorkerReport {
  std::string reason;        // why it ended: "finished" or "stop"
  std::int64_t groups = 0;   // uploaded
  std::int64_t dropped = 0;  // begun, and not uploaded
};

// Works for a run until it is finished or a stop is requested: joins (run.json, artifacts, memory), then sweep after
// sweep with the newest version; groups go to the hub as their last episode ends, beside the next sweep. May begin and
// end at any time: the counters of a group are spent before it starts, so that a worker which is killed costs its
// groups in flight and nothing else.
//
// Of the weights there is only what the engine has packed: a new version is made out of it, tensor by tensor, by deltas
// that were checked before. It is swapped in between sweeps; unless the run drains them, between two forward calls of
// one, so that an episode may be of several versions and is as stale as the oldest. A sweep with `refill` goes on while
// the learner wants groups; in a run that drains it takes none after a new version is out, ends with the older weights,
// and the next sweep has the new ones.
//
// What others do on the machine limits it as Courtesy says: it rests between forward calls, or goes on with fewer
// groups and gives memory of the others back.
//
// When asked to stop, the sweep under way and the uploads get `stop_grace`; then they are dropped, within one forward
// call; weights on their way are given up between two parts, of some MiB, of a fetch or a check. While the hub is away,
// operations are tried again as `retry` says. Errors: those of open_run_assets() and plan_memory(), failed_precondition
// when the same worker is at work in another process, data_loss when a version of the weights is bad, whatever the hub
// refuses for good.
//
// Runs on the calling thread, with one more for uploads, one that looks at the hub beside a sweep with `refill` or
// in a run that does not drain, and `threads` of the engine. Where the run does not drain, that one also fetches new
// versions and checks them, alone and without rests. Emits the worker.* events.
// In a run with claims the tasks come from a ClaimKeeper, which has a thread of its own: those that are not on the hub
// when the worker ends are done by its next life, or by others when its lease has run out.
Result<WorkerReport> run_worker(ObjectStore& store, const WorkerOptions& options, EventSink& events,
                                std::stop_token stop, const Clock& clock = system_clock());

}  // namespace flotilla
