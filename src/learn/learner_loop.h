#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "base/clock.h"
#include "base/philox.h"
#include "config/run_config.h"
#include "learn/checkpoint.h"
#include "learn/learner_control.h"
#include "learn/replay_buffer.h"
#include "learn/rollout_source.h"
#include "learn/trainer.h"
#include "telemetry/event_sink.h"

namespace flotilla {

struct LearnerSettings {
  std::string run;  // "<owner>/<run>"
  LearnerSection learner;
  OptimizerSection optimizer;
  LossSection loss;  // token_budget is set
  WarmupSection warmup;
  std::int32_t group_size = 8;
  std::chrono::nanoseconds poll = std::chrono::milliseconds(500);  // between two looks at the hub
};

// What the loop works with. All of it outlives the loop.
struct LearnerParts {
  Trainer& trainer;
  RolloutSource& source;
  SnapshotSink& sink;
  CheckpointFolder& checkpoints;
  LearnerControl& control;
  EventSink& events;
  const Clock& clock;
  std::function<Status()> flush_events;  // before a checkpoint
  // The i-th demonstration of the warm-up.
  std::function<Result<TrainingSequence>(std::uint64_t index)> demonstration;
  // Waits; LearnerControl::wait unless a test moves the clock instead.
  std::function<void(std::chrono::nanoseconds)> wait;
};

// A learner's life: resume from the newest checkpoint or begin; warm up; publish version 0; then take batches from the
// replay buffer, train, publish and checkpoint, until the steps, the budget or a request end it. The only wait without
// an end is for groups and for a hub that is away; both say what they wait for, in the log and in the status, and end
// when the control asks.
//
// Versions are published beside the training, one at a time: when the next is due before the last one can be pulled,
// the loop waits for it (docs/design/weight-sync.md). In sequential mode, at the begin and at the end it always does.
//
// One thread. Between micro-batches it looks for new groups, tells the fleet how many it still wants, and listens.
class LearnerLoop {
 public:
  LearnerLoop(LearnerSettings settings, LearnerParts parts);

  // Returns ok when the run has finished or was asked to leave. failed_precondition: a newer learner has taken over.
  Status run();

 private:
  struct Held {
    Group group;
    Bytes file;
    std::vector<float> advantages;
  };
  struct Batch {
    std::vector<GroupId> ids;
    std::vector<const Group*> groups;
    std::vector<std::vector<float>> advantages;
  };

  // A version on its way to the hub.
  struct Publication {
    std::shared_ptr<const GridState> state;
    std::uint64_t steps = 0;  // that it contains
    RegridReport grid;
    std::chrono::nanoseconds began{0};
    double seconds_held = 0;                                    // that training stood still for it
    std::chrono::nanoseconds pause{0};                          // after the next failure; grows
    std::optional<std::chrono::nanoseconds> next_attempt = {};  // when; nullopt while one is under way
    PhiloxStream random;
  };

  Status resume();
  Status warm_up();
  Status begin_versions();
  Status train();
  Status step(const std::vector<GroupId>& ids, double seconds_wait);
  Status end(std::string_view reason);
  void tell_end(std::string_view reason);

  // Keeps an eye on the world: polls, admits, expires, updates head. Cheap when called too often. The hub's errors are
  // reported and tried again later; only those that mean the end are returned.
  Status look_around();
  void take(ReceivedGroup received);
  void expire();
  // For the trainer, between micro-batches: look_around(), and cancelled when the process is to leave.
  Status pause();

  // Begins to publish what the masters are.
  Status publish();
  // Hears what became of the version on its way, and tries again, ever less often, while the hub is away. Returns at
  // once; an error means the end.
  Status follow_publication();
  void published(const PublishReport& report);
  // Waits until it can be pulled, or was asked to leave: cancelled.
  Status await_publication();
  // Waits for the attempt under way, which the process cannot end without, and for no other one: who resumes publishes
  // these weights.
  void leave_publication();
  // Against which staleness counts: a version on its way as if it were there, since the masters have left the one
  // before.
  Version newest_or_coming() const;
  std::int64_t wanted() const;
  // Tries again, ever less often, while the hub is away.
  Status insist(const std::string& what, const std::function<Status()>& action);
  Status checkpoint();
  void tell_failure(const std::string& what, const Status& status, std::chrono::nanoseconds pause);
  bool asked_to_leave() const;
  double rl_seconds() const;
  void report(const std::string& waiting_for);
  void emit(const char* kind, nlohmann::json fields);

  const LearnerSettings settings_;
  LearnerParts parts_;
  ReplayBuffer buffer_;
  LearnerProgress progress_;
  std::map<GroupId, Held> held_;
  std::shared_ptr<const GridState> version0_, grid_;
  std::optional<SnapshotVersion> newest_;
  std::optional<Publication> publication_;
  std::map<GroupId, ReceivedGroup> early_;            // of the version on its way, which is not known to be there yet
  double seconds_held_ = 0;                           // that training stood still for versions, in this life
  std::uint64_t warmup_steps_ = 0;                    // that the warm-up has
  std::optional<std::chrono::nanoseconds> rl_began_;  // when progress_.seconds was last brought up to date
  std::chrono::nanoseconds next_look_{0};
  std::chrono::nanoseconds look_pause_{0};  // grows while the hub is away
};

}  // namespace flotilla
