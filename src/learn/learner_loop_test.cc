#include "learn/learner_loop.h"

#include <deque>
#include <set>

#include <gtest/gtest.h>

#include "base/files.h"
#include "base/philox.h"
#include "model/test_models.h"
#include "rollout/group_file.h"
#include "rollout/group_for_tests.h"
#include "telemetry/event_sinks.h"

namespace flotilla {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

Group make_group(std::uint64_t version, std::uint64_t counter, bool signal = true) {
  Group group = make_test_group();
  group.identity.counter = counter;
  group.identity.group = group_id(group.identity);
  for (Episode& episode : group.episodes) {
    episode.spans = {{3, static_cast<std::int32_t>(episode.tokens.size()), Version(version), sha256("state")}};
  }
  group.episodes[0].reward = signal ? 1 : 0;
  return group;
}

// Moves every master a little at each step, and takes a second for it.
class FakeTrainer final : public Trainer {
 public:
  FakeTrainer(const ModelWeights& weights, ManualClock& clock) : weights_(weights), clock_(clock) {
    mean_ = mean_square_ = weights_.tensors;
  }
  const ModelDescription& description() const override { return weights_.description; }

  Result<PolicyStepReport> policy_step(std::span<const Group* const> groups, std::span<const std::vector<float>> values,
                                       const PolicyStepOptions& options, const AdamWOptions&,
                                       const Pause& pause) override {
    EXPECT_EQ(groups.size(), values.size());
    if (moment) FLOTILLA_RETURN_IF_ERROR(moment());
    denominator = options.denominator;
    for (int i = 0; i < 2; ++i) {
      clock_.advance(milliseconds(500));
      FLOTILLA_RETURN_IF_ERROR(pause());
    }
    move();
    return PolicyStepReport{.tokens = 10, .computed = 100};
  }
  Result<ImitationReport> imitation_step(std::span<const TrainingSequence> demonstrations, const AdamWOptions&,
                                         const Pause& pause) override {
    clock_.advance(seconds(1));
    FLOTILLA_RETURN_IF_ERROR(pause());
    for (const TrainingSequence& joined : demonstrations) shown += joined.branch_ends.size();
    move();
    return ImitationReport{.loss = 1, .tokens = 5};
  }
  Result<std::vector<std::vector<float>>> logprobs(std::span<const TrainingSequence>) override {
    return std::vector<std::vector<float>>();
  }
  void set_grid(std::shared_ptr<const GridState>) override {}
  Status set_reference(const GridState* version0) override {
    has_reference = version0 != nullptr;
    return ok_status();
  }
  Status set_masters(const ModelWeights& weights) override {
    weights_ = weights;
    return ok_status();
  }
  TrainerState state() override {
    TrainerState state;
    for (std::size_t i = 0; i < weights_.tensors.size(); ++i) {
      state.masters.push_back(weights_.tensors[i]);
      state.mean.push_back(mean_[i]);
      state.mean_square.push_back(mean_square_[i]);
    }
    return state;
  }
  std::uint64_t optimizer_steps() const override { return steps_; }
  void set_optimizer_steps(std::uint64_t steps) override { steps_ = steps; }
  void reset_optimizer() override { steps_ = 0; }

  double denominator = 0;
  std::size_t shown = 0;
  bool has_reference = false;
  std::function<Status()> moment;  // before each step: an error is a death

 private:
  void move() {
    ++steps_;
    for (auto& tensor : weights_.tensors) {
      for (float& value : tensor) value += 1e-3f;
    }
  }
  ModelWeights weights_;
  std::vector<std::vector<float>> mean_, mean_square_;
  std::uint64_t steps_ = 0;
  ManualClock& clock_;
};

// Hub and fleet in one: keeps what is published, makes as many groups as are wanted whenever the learner waits or
// looks.
class FakeHub final : public RolloutSource, public SnapshotSink {
 public:
  explicit FakeHub(const ModelDescription& description) : description_(description) {}

  Result<RolloutPoll> poll(Version oldest, const std::function<bool(const GroupId&)>& known) override {
    if (down) return unavailable("the hub is away");
    RolloutPoll result;
    for (const Group& group : uploaded) {
      if (group.oldest_version() < oldest || known(group.identity.group)) continue;
      result.groups.push_back({group, write_group(group)});
    }
    result.refused = std::exchange(refused, {});
    return result;
  }
  Result<PublishReport> publish(const GridState& state, std::uint64_t step) override {
    if (down) return unavailable("the hub is away");
    const Sha256Digest digest = state_digest(description_, state);
    versions.push_back(digest);
    steps.push_back(step);
    return PublishReport{.version = Version(versions.size() - 1), .state = digest};
  }
  Status update(RunState state, std::int64_t wanted) override {
    if (down) return unavailable("the hub is away");
    if (state == RunState::kFinished && deaf_to_the_end) {
      ++missed_ends;
      return unavailable("the hub is away");
    }
    run_state = state;
    wished = wanted;
    return ok_status();
  }
  Result<std::optional<SnapshotVersion>> newest() override {
    if (versions.empty()) return std::optional<SnapshotVersion>();
    return std::optional(SnapshotVersion{Version(versions.size() - 1), versions.back(), Generation(1)});
  }

  void work() {
    for (std::int64_t i = 0; i < wished && !versions.empty(); ++i) {
      uploaded.push_back(make_group(versions.size() - 1, counter, counter % 3 != 0));
      ++counter;
    }
  }

  bool down = false;
  bool deaf_to_the_end = false;
  int missed_ends = 0;
  std::deque<Group> uploaded;
  std::vector<RefusedGroup> refused;
  std::vector<Sha256Digest> versions;
  std::vector<std::uint64_t> steps;
  RunState run_state = RunState::kRunning;
  std::int64_t wished = 0;
  std::uint64_t counter = 0;

 private:
  const ModelDescription description_;
};

class LearnerLoopTest : public testing::Test {
 protected:
  LearnerLoopTest() : weights_(tiny_weights(tiny_description())), hub_(weights_.description) {
    settings_.run = "owner/run";
    settings_.group_size = 2;
    settings_.learner.steps = 6;
    settings_.learner.batch_groups = 3;
    settings_.learner.wanted_groups = 2;
    settings_.learner.publish_every = 2;
    settings_.learner.checkpoint_every = 2;
    settings_.learner.max_reuse = 2;
    settings_.loss.token_budget = 64;
    settings_.loss.kl = 0;
  }

  // One life of the learner's process. `kill_after` counts the moments at which it may die; 0: never.
  Status live(int kill_after = 0) {
    trainer_ = std::make_unique<FakeTrainer>(weights_, clock_);
    control_ = std::make_unique<LearnerControl>();
    CheckpointFolder checkpoints(folder_.path(), weights_.description, settings_.learner.keep_checkpoints);
    int moments = 0;
    const auto moment = [&]() -> Status { return ++moments == kill_after ? internal_error("killed") : ok_status(); };
    trainer_->moment = moment;
    LearnerLoop loop(settings_,
                     {.trainer = *trainer_,
                      .source = hub_,
                      .sink = hub_,
                      .checkpoints = checkpoints,
                      .control = *control_,
                      .events = events_,
                      .clock = clock_,
                      .flush_events = moment,
                      .demonstration = [](std::uint64_t index) -> Result<TrainingSequence> {
                        return TrainingSequence{
                            .tokens = {1, static_cast<TokenId>(index)}, .prompt = 1, .branch_ends = {2}, .targets = {}};
                      },
                      .wait =
                          [&](std::chrono::nanoseconds time) {
                            clock_.advance(time);
                            hub_.work();
                            if (on_wait_) on_wait_();
                          }});
    return loop.run();
  }

  // The promises that docs/formats/events.md says can be checked.
  void check_events() {
    std::map<std::int64_t, nlohmann::json> lineage;
    std::int64_t last_version = -1;
    for (const Event& event : events_.events()) {
      if (event.kind == "learner.resume") lineage.erase(lineage.upper_bound(event.fields["step"]), lineage.end());
      if (event.kind == "learner.start" && lineage_is_new_) lineage.clear();
      if (event.kind == "learner.step") {
        lineage[event.fields["step"]] = event.fields;
        for (std::size_t s = 0; s < event.fields["staleness"].size(); ++s) {
          if (std::ssize(event.fields["staleness"]) > settings_.learner.max_staleness + 1) FAIL() << "too stale";
        }
      }
      if (event.kind == "learner.publish") {
        EXPECT_GT(event.fields["version"].get<std::int64_t>(), last_version);
        last_version = event.fields["version"];
      }
    }
    std::map<std::string, std::int64_t> uses;
    std::int64_t next = 1;
    for (const auto& [step, fields] : lineage) {
      EXPECT_EQ(step, next++);
      std::set<std::string> names;
      for (std::size_t i = 0; i < fields["groups"].size(); ++i) {
        const std::string name = fields["groups"][i];
        EXPECT_TRUE(names.insert(name).second) << "twice in one batch";
        EXPECT_EQ(fields["reuse"][i].get<std::int64_t>(), ++uses[name]);
        EXPECT_LE(uses[name], settings_.learner.max_reuse);
      }
    }
  }

  TemporaryFolder folder_;
  ManualClock clock_;
  ModelWeights weights_;
  FakeHub hub_;
  MemorySink events_;
  LearnerSettings settings_;
  std::unique_ptr<FakeTrainer> trainer_;
  std::unique_ptr<LearnerControl> control_;
  std::function<void()> on_wait_;
  bool lineage_is_new_ = false;
};

TEST_F(LearnerLoopTest, WarmsUpPublishesTrainsAndFinishes) {
  settings_.warmup.demonstrations = 10;
  settings_.warmup.batch = 4;
  ASSERT_TRUE(live().ok());
  EXPECT_EQ(trainer_->shown, 10u);
  EXPECT_EQ(events_.events("learner.warmup_step").size(), 3u);
  EXPECT_EQ(events_.events("learner.step").size(), 6u);
  EXPECT_EQ(hub_.steps, (std::vector<std::uint64_t>{0, 2, 4, 6}));
  EXPECT_EQ(hub_.run_state, RunState::kFinished);
  EXPECT_EQ(hub_.wished, 0);
  EXPECT_EQ(trainer_->denominator, 3.0 * 2 * 64);
  EXPECT_EQ(trainer_->optimizer_steps(), 6u) << "the warm-up's optimizer is not RL's";
  EXPECT_EQ(events_.events("learner.finish").back().fields["reason"], "steps");
  EXPECT_FALSE(trainer_->has_reference);
  check_events();
}

TEST_F(LearnerLoopTest, AFinishedRunIsLeftAsItIs) {
  ASSERT_TRUE(live().ok());
  const auto versions = hub_.versions;
  ASSERT_TRUE(live().ok());
  EXPECT_EQ(hub_.versions, versions);
  EXPECT_EQ(events_.events("learner.step").size(), 6u);
  settings_.learner.steps = 8;
  ASSERT_TRUE(live().ok());
  EXPECT_EQ(events_.events("learner.step").size(), 8u) << "a raised limit goes on";
  check_events();
}

TEST_F(LearnerLoopTest, TheBudgetCountsTimeOfRlOnly) {
  settings_.learner.steps = 0;
  settings_.learner.budget = Seconds(5);
  settings_.warmup.demonstrations = 100;
  ASSERT_TRUE(live().ok());
  EXPECT_EQ(events_.events("learner.finish").back().fields["reason"], "budget");
  EXPECT_NEAR(events_.events("learner.finish").back().fields["seconds"].get<double>(), 5, 1.5);
}

TEST_F(LearnerLoopTest, TheWarmUpHasNoCheckpointJustBeforeItsOwn) {
  settings_.warmup.demonstrations = 10;
  settings_.warmup.batch = 1;
  settings_.learner.checkpoint_every = 4;
  settings_.learner.steps = 1;
  ASSERT_TRUE(live().ok());
  // After step 4 and at the end; 8 is too close to it. The third is the end of the run.
  EXPECT_EQ(events_.events("learner.checkpoint").size(), 3u);
}

TEST_F(LearnerLoopTest, DiesAtAnyMomentAndResumes) {
  settings_.warmup.demonstrations = 12;
  settings_.warmup.batch = 2;
  PhiloxStream random(11, 0);
  for (int life = 0; life < 12; ++life) {
    const Status status = live(1 + static_cast<int>(random.below(4)));
    if (status.ok()) break;
    EXPECT_EQ(status.code(), StatusCode::kInternal);
  }
  ASSERT_TRUE(live().ok());
  EXPECT_EQ(events_.events("learner.finish").back().fields["step"], 6);
  check_events();
}

TEST_F(LearnerLoopTest, ACheckpointOlderThanHeadPublishesItsOwnWeights) {
  settings_.learner.checkpoint_every = 4;
  settings_.learner.publish_every = 1;
  on_wait_ = [this] {
    if (hub_.versions.size() == 7) control_->ask(LearnerControl::Request::kLeave);
  };
  ASSERT_TRUE(live().ok());
  // As if the last checkpoint had not been written.
  CheckpointFolder checkpoints(folder_.path(), weights_.description, 2);
  const auto numbers = checkpoints.list().value();
  ASSERT_EQ(numbers.size(), 2u);
  std::filesystem::remove(folder_.path() / (padded(numbers.back()) + ".safetensors"));
  on_wait_ = nullptr;
  const std::size_t before = hub_.versions.size();
  ASSERT_TRUE(live().ok());
  EXPECT_EQ(hub_.versions[before], hub_.versions[4]) << "the state after step 4, under a new number";
  check_events();
}

TEST_F(LearnerLoopTest, WaitsForAHubThatIsAway) {
  hub_.down = true;
  int waits = 0;
  on_wait_ = [&] {
    if (++waits == 5) hub_.down = false;
    if (waits == 12) hub_.down = true;
    if (waits == 20) hub_.down = false;
  };
  ASSERT_TRUE(live().ok());
  EXPECT_GE(events_.events("hub.error").size(), 5u);
  EXPECT_EQ(events_.events("learner.step").size(), 6u);
  check_events();
}

TEST_F(LearnerLoopTest, StopFinishesAndLeaveDoesNot) {
  settings_.learner.steps = 0;
  on_wait_ = [this] {
    if (events_.events("learner.step").size() >= 3) control_->ask(LearnerControl::Request::kLeave);
  };
  ASSERT_TRUE(live().ok());
  EXPECT_EQ(hub_.run_state, RunState::kPaused);
  EXPECT_EQ(hub_.wished, 0);
  on_wait_ = [this] {
    if (events_.events("learner.step").size() >= 5) control_->ask(LearnerControl::Request::kFinish);
  };
  ASSERT_TRUE(live().ok());
  EXPECT_EQ(hub_.run_state, RunState::kFinished);
  EXPECT_EQ(hub_.steps.back(), events_.events("learner.finish").back().fields["step"].get<std::uint64_t>());
  check_events();
}

TEST_F(LearnerLoopTest, LeavingBeforeTheFleetHeardOfTheEndLeavesAPausedRun) {
  settings_.learner.steps = 2;
  hub_.deaf_to_the_end = true;
  on_wait_ = [this] {
    if (hub_.missed_ends > 0) control_->ask(LearnerControl::Request::kLeave);
  };
  ASSERT_TRUE(live().ok());
  EXPECT_EQ(hub_.run_state, RunState::kPaused);
  ASSERT_EQ(events_.events("learner.finish").size(), 1u);
  EXPECT_EQ(events_.events("learner.finish").back().fields["reason"], "leave");
  hub_.deaf_to_the_end = false;
  on_wait_ = [] {};
  ASSERT_TRUE(live().ok());
  EXPECT_EQ(hub_.run_state, RunState::kFinished);
  check_events();
}

TEST_F(LearnerLoopTest, APausedRunTrainsNothingAndSpendsNoBudget) {
  settings_.learner.steps = 3;
  settings_.learner.budget = Seconds(1000);
  int paused_for = 0;
  on_wait_ = [&] {
    if (events_.events("learner.step").empty() && paused_for == 0) control_->pause(true);
    if (control_->paused() && ++paused_for == 50) {
      EXPECT_EQ(hub_.run_state, RunState::kPaused);
      EXPECT_EQ(hub_.wished, 0);
      control_->pause(false);
    }
    if (control_->paused()) clock_.advance(seconds(60));
  };
  ASSERT_TRUE(live().ok());
  EXPECT_LT(events_.events("learner.finish").back().fields["seconds"].get<double>(), 100);
}

TEST_F(LearnerLoopTest, SequentialStepsUseExactlyTheNewestVersion) {
  settings_.learner.mode = LearnerMode::kSequential;
  settings_.learner.publish_every = 1;
  settings_.learner.max_reuse = 1;
  settings_.learner.max_staleness = 0;
  ASSERT_TRUE(live().ok());
  EXPECT_EQ(hub_.steps, (std::vector<std::uint64_t>{0, 1, 2, 3, 4, 5, 6}));
  for (const Event& event : events_.events("learner.step")) {
    EXPECT_EQ(event.fields["staleness"], nlohmann::json::array({3}));
    EXPECT_EQ(event.fields["version"], event.fields["step"].get<int>() - 1);
  }
  check_events();
}

TEST_F(LearnerLoopTest, GroupsWithoutSignalAreLeftOutWhenAsked) {
  settings_.loss.drop_zero_signal = true;
  ASSERT_TRUE(live().ok());
  for (const Event& event : events_.events("learner.step")) EXPECT_EQ(event.fields["zero_signal"], 0);
  EXPECT_FALSE(events_.events("learner.dropped_group").empty());
}

TEST_F(LearnerLoopTest, ReportsWhatTheSourceRefused) {
  hub_.refused = {{"bad", "somebody", "tokens outside the vocabulary"}};
  ASSERT_TRUE(live().ok());
  EXPECT_EQ(events_.events("learner.dropped_group").front().fields["reason"], "tokens outside the vocabulary");
}

TEST_F(LearnerLoopTest, TheKlTermNeedsVersionZero) {
  settings_.loss.kl = 1e-3;
  ASSERT_TRUE(live().ok());
  EXPECT_TRUE(trainer_->has_reference);
}

}  // namespace
}  // namespace flotilla
