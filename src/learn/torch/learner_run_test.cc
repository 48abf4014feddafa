// The whole of the main job on a toy: a learner on libtorch, workers on the engine, a hub in memory.
#include <future>

#include <gtest/gtest.h>

#include "learn/hub_snapshot_sink.h"
#include "learn/learner_loop.h"
#include "learn/torch/torch_trainer.h"
#include "rollout/run_for_tests.h"
#include "rollout/worker.h"
#include "telemetry/event_sinks.h"

namespace flotilla {
namespace {

using std::chrono::milliseconds;

// What a run leaves behind.
struct Outcome {
  std::vector<std::string> states;                // of the versions, in order
  std::vector<std::vector<std::string>> batches;  // group ids of each step
  bool operator==(const Outcome&) const = default;
};

class LearnerRun {
 public:
  explicit LearnerRun(LearnerMode mode, int steps) : run_(ToyRun()) {
    settings_.run = run_.spec.run;
    settings_.learner.mode = mode;
    settings_.learner.steps = steps;
    settings_.learner.batch_groups = 3;
    settings_.learner.wanted_groups = 2;
    settings_.learner.publish_every = 1;
    settings_.learner.max_reuse = mode == LearnerMode::kSequential ? 1 : 2;
    settings_.learner.max_staleness = mode == LearnerMode::kSequential ? 0 : 3;
    settings_.optimizer.learning_rate = 1e-3;
    settings_.loss.token_budget = toy_.environment.limits().model_tokens;
    settings_.loss.kl = 0;
    settings_.group_size = run_.spec.group_size;
    settings_.poll = milliseconds(1);
  }

  Status learn() {
    const ModelDescription& description = toy_model().description;
    const auto trainer = make_torch_trainer(description, {.threads = 1}).value();
    FLOTILLA_RETURN_IF_ERROR(trainer->set_masters(dequantize(description, toy_model().state)));
    HubVersions versions(*run_.store, run_.layout, run_.learner->public_key());
    HubRolloutSource source(*run_.store, run_.layout,
                            {.run = &run_.spec,
                             .environment = &toy_.environment,
                             .tokenizer = toy_.tokenizer.get(),
                             .tokenizer_digest = toy_.tokenizer->digest(),
                             .corpus = run_.spec.environment,
                             .vocabulary = description.vocabulary,
                             .context = description.context},
                            versions);
    FLOTILLA_ASSIGN_OR_RETURN(auto publisher, Publisher::open(*run_.store, run_.layout, description, run_.learner,
                                                              {.anchor_every = 4}, events_));
    HubSnapshotSink sink(std::move(publisher), versions, [this] { control_.wake(); });
    CheckpointFolder checkpoints(run_.scratch.path() / "checkpoints", description, 2);
    LearnerLoop loop(settings_, {.trainer = *trainer,
                                 .source = source,
                                 .sink = sink,
                                 .checkpoints = checkpoints,
                                 .control = control_,
                                 .events = events_,
                                 .clock = system_clock(),
                                 .flush_events = [] { return ok_status(); },
                                 .demonstration = [](std::uint64_t) -> Result<TrainingSequence> {
                                   return not_found("there is no warm-up");
                                 },
                                 .wait = [this](std::chrono::nanoseconds time) { control_.wait(time); }});
    return loop.run();
  }

  // A worker until the run is finished.
  std::future<Result<WorkerReport>> start_worker() {
    WorkerOptions options;
    options.layout = run_.layout;
    options.key = run_.worker;
    options.cache_folder = run_.scratch.path() / "cache";
    options.state_folder = run_.scratch.path() / "state";
    options.sweep_groups = 2;
    options.poll = milliseconds(1);
    options.open_environment = ToyRun::open_toy;
    return std::async(std::launch::async,
                      [this, options] { return run_worker(*run_.store, options, null_event_sink(), {}); });
  }

  Outcome outcome() const {
    Outcome outcome;
    for (const Event& event : events_.events("learner.publish")) outcome.states.push_back(event.fields["state"]);
    for (const Event& event : events_.events("learner.step")) outcome.batches.push_back(event.fields["groups"]);
    return outcome;
  }
  void use_worker_key(std::shared_ptr<const SigningKey> key) { run_.worker = std::move(key); }

 private:
  Toy toy_;
  ToyRun run_;
  LearnerSettings settings_;
  LearnerControl control_;
  MemorySink events_;
};

TEST(LearnerRun, TwentySequentialStepsTwiceGiveTheSameStates) {
  const auto key = SigningKey::generate().value();
  const auto once = [&] {
    LearnerRun run(LearnerMode::kSequential, 20);
    run.use_worker_key(key);
    auto worker = run.start_worker();
    const Status status = run.learn();
    EXPECT_TRUE(status.ok()) << status.to_string();
    EXPECT_EQ(worker.get()->reason, "finished");
    return run.outcome();
  };
  const Outcome first = once();
  EXPECT_EQ(first.states.size(), 21u);
  EXPECT_EQ(first.batches.size(), 20u);
  EXPECT_EQ(once(), first);
}

TEST(LearnerRun, AsynchronousWorkersFeedTheLearner) {
  LearnerRun run(LearnerMode::kAsync, 15);
  auto worker = run.start_worker();
  const Status status = run.learn();
  EXPECT_TRUE(status.ok()) << status.to_string();
  EXPECT_EQ(worker.get()->reason, "finished");
  EXPECT_EQ(run.outcome().batches.size(), 15u);
  EXPECT_EQ(run.outcome().states.size(), 16u);
}

}  // namespace
}  // namespace flotilla
