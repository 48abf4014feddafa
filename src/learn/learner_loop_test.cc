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
      if (moment) FLOTILLA_RETURN_IF_ERROR(moment());
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
  FakeHub(const ModelDescription& description, const Clock& clock) : description_(description), clock_(clock) {}

  // How an attempt to publish goes.
  struct Upload {
    std::chrono::nanoseconds visible{0};  // until readers see the version
    std::chrono::nanoseconds answer{0};   // until the learner hears, after that
    Status failure = {};                  // the answer, and nobody ever sees the version
    bool lost = false;                    // the version is there, and the answer says that the hub is away
  };

  Result<RolloutPoll> poll(Version oldest, Version, const std::function<bool(const GroupId&)>& known) override {
    if (down) return unavailable("the hub is away");
    if (busy_fleet) work();
    RolloutPoll result;
    for (const Group& group : uploaded) {
      if (group.oldest_version() < oldest || known(group.identity.group)) continue;
      result.groups.push_back({group, write_group(group)});
    }
    result.refused = std::exchange(refused, {});
    return result;
  }
  void begin(std::shared_ptr<const GridState> state, std::uint64_t step) override {
    EXPECT_FALSE(attempt_) << "one at a time";
    attempt_ = Attempt{state_digest(description_, *state), step, clock_.monotonic(), next_upload(), {}};
  }
  std::optional<Result<PublishReport>> finished() override {
    pass();
    if (!attempt_ || clock_.monotonic() < attempt_->began + attempt_->upload.visible + attempt_->upload.answer) {
      return std::nullopt;
    }
    const Attempt done = *std::exchange(attempt_, std::nullopt);
    if (!done.upload.failure.ok()) return done.upload.failure;
    lost_ = done.version;
    if (down || done.upload.lost || !done.version) return unavailable("the hub is away");
    lost_.reset();
    return PublishReport{.version = *done.version, .state = done.digest};
  }
  // What the hub does by itself: a version that was uploaded is there, whether its learner knows or not.
  void pass() {
    if (!attempt_ || attempt_->version || !attempt_->upload.failure.ok() || down ||
        clock_.monotonic() < attempt_->began + attempt_->upload.visible) {
      return;
    }
    if (!lost_) {
      versions.push_back(attempt_->digest);
      steps.push_back(attempt_->step);
    }
    attempt_->version = Version(versions.size() - 1);
  }
  // The learner's process is gone, and its attempt with it.
  void forget() { attempt_.reset(), lost_.reset(); }
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
    pass();
    for (std::int64_t i = 0; i < wished && !versions.empty(); ++i) {
      uploaded.push_back(make_group(versions.size() - 1, counter, counter % 3 != 0));
      ++counter;
    }
  }

  std::function<Upload()> next_upload = [] { return Upload{}; };
  bool busy_fleet = false;  // works whenever the learner looks, too
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
  struct Attempt {
    Sha256Digest digest;
    std::uint64_t step = 0;
    std::chrono::nanoseconds began{0};
    Upload upload;
    std::optional<Version> version;  // once it is there
  };
  const ModelDescription description_;
  const Clock& clock_;
  std::optional<Attempt> attempt_;
  std::optional<Version> lost_;  // is there, and its learner does not know
};

class LearnerLoopTest : public testing::Test {
 protected:
  LearnerLoopTest() : weights_(tiny_weights(tiny_description())), hub_(weights_.description, clock_) {
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
    control_->pause(paused_at_start_);
    CheckpointFolder checkpoints(folder_.path(), weights_.description, settings_.learner.keep_checkpoints);
    int moments = 0;
    const auto moment = [&]() -> Status { return ++moments == kill_after ? internal_error("killed") : ok_status(); };
    hub_.forget();
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
    std::int64_t last_version = -1, published_step = 0;
    for (const Event& event : events_.events()) {
      if (event.kind == "learner.resume") lineage.erase(lineage.upper_bound(event.fields["step"]), lineage.end());
      if (event.kind == "learner.start" && lineage_is_new_) lineage.clear();
      if (event.kind == "learner.resume") {
        published_step = event.fields["step"];
        last_version = std::max(last_version, event.fields["version"].get<std::int64_t>() - 1);
      }
      if (event.kind == "learner.group") {
        EXPECT_LE(event.fields["version"].get<std::int64_t>(), last_version) << "not known to be there";
      }
      if (event.kind == "learner.step") {
        lineage[event.fields["step"]] = event.fields;
        // Weights leave the newest version by less than two rounds.
        EXPECT_LE(event.fields["step"].get<std::int64_t>() - published_step, 2 * settings_.learner.publish_every);
        for (std::size_t s = 0; s < event.fields["staleness"].size(); ++s) {
          if (std::ssize(event.fields["staleness"]) > settings_.learner.max_staleness + 1) FAIL() << "too stale";
        }
      }
      if (event.kind == "learner.publish") {
        EXPECT_GT(event.fields["version"].get<std::int64_t>(), last_version);
        last_version = event.fields["version"];
        published_step = event.fields["step"];
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
  bool paused_at_start_ = false;
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

TEST_F(LearnerLoopTest, TrainingGoesOnWhileAVersionIsUploaded) {
  hub_.next_upload = [] { return FakeHub::Upload{.visible = milliseconds(1200), .answer = milliseconds(100)}; };
  hub_.busy_fleet = true;
  ASSERT_TRUE(live().ok());
  EXPECT_EQ(hub_.steps, (std::vector<std::uint64_t>{0, 2, 4, 6}));
  for (const Event& event : events_.events("learner.publish")) {
    const bool at_an_end = event.fields["step"] == 0 || event.fields["step"] == 6;
    EXPECT_GE(event.fields["seconds"].get<double>(), 1.3);
    EXPECT_EQ(event.fields["seconds_held"].get<double>() > 0, at_an_end) << event.fields;
  }
  std::vector<int> versions;  // that were there when a step began
  for (const Event& event : events_.events("learner.step")) versions.push_back(event.fields["version"]);
  EXPECT_EQ(versions, (std::vector<int>{0, 0, 0, 0, 1, 1}));
  check_events();
}

TEST_F(LearnerLoopTest, AVersionThatIsDueWaitsForTheOneOnItsWay) {
  settings_.learner.publish_every = 1;
  hub_.next_upload = [] { return FakeHub::Upload{.visible = seconds(5)}; };
  ASSERT_TRUE(live().ok());
  EXPECT_EQ(hub_.steps, (std::vector<std::uint64_t>{0, 1, 2, 3, 4, 5, 6})) << "each step's, none is left out";
  for (const Event& event : events_.events("learner.publish")) {
    EXPECT_GT(event.fields["seconds_held"].get<double>(), 2) << event.fields;
  }
  check_events();
}

TEST_F(LearnerLoopTest, StalenessCountsTheVersionOnItsWay) {
  settings_.learner.publish_every = 1;
  settings_.learner.max_staleness = 0;
  hub_.busy_fleet = true;
  hub_.next_upload = [] { return FakeHub::Upload{.visible = milliseconds(1500)}; };
  ASSERT_TRUE(live().ok());
  // Groups of the version before would be one version old, and so every step waits for the version.
  for (const Event& event : events_.events("learner.step")) {
    EXPECT_EQ(event.fields["version"], event.fields["step"].get<int>() - 1);
    EXPECT_EQ(event.fields["staleness"], nlohmann::json::array({3}));
  }
  check_events();
}

TEST_F(LearnerLoopTest, GroupsOfAVersionThatTheLearnerHasNotHeardOfWaitForTheNews) {
  settings_.learner.steps = 20;
  hub_.busy_fleet = true;
  hub_.next_upload = [] { return FakeHub::Upload{.answer = milliseconds(900)}; };
  ASSERT_TRUE(live().ok());
  for (const Event& event : events_.events("learner.dropped_group")) EXPECT_EQ(event.fields["reason"], "stale");
  check_events();
}

TEST_F(LearnerLoopTest, ANewerLearnerStopsTheRunInTheMiddleOfAStep) {
  int uploads = 0;
  hub_.next_upload = [&] {
    return ++uploads < 2
               ? FakeHub::Upload{}
               : FakeHub::Upload{.answer = milliseconds(600), .failure = failed_precondition("another learner")};
  };
  EXPECT_EQ(live().code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(hub_.steps, (std::vector<std::uint64_t>{0}));
  EXPECT_EQ(events_.events("learner.step").size(), 2u);
}

TEST_F(LearnerLoopTest, LeavingTellsOfTheVersionThatComesAndWaitsForNoHubThatIsAway) {
  for (const bool away : {false, true}) {
    settings_.learner.steps = 0;
    int uploads = 0;
    hub_.next_upload = [&] {
      if (++uploads < 2) return FakeHub::Upload{};
      control_->ask(LearnerControl::Request::kLeave);
      return FakeHub::Upload{.visible = seconds(30), .failure = away ? unavailable("the hub is away") : ok_status()};
    };
    const std::size_t before = events_.events("learner.publish").size();
    ASSERT_TRUE(live().ok());
    EXPECT_EQ(events_.events("learner.publish").size(), before + (away ? 1 : 2));
    hub_.next_upload = [] { return FakeHub::Upload{}; };
    settings_.learner.steps = away ? 24 : 12;
    ASSERT_TRUE(live().ok());
    check_events();
  }
}

// A slow hub that fails, keeps answers back and loses them, under a learner that dies and leaves at any moment.
class LearnerLoopSchedule : public LearnerLoopTest, public testing::WithParamInterface<int> {};

TEST_P(LearnerLoopSchedule, KeepsEveryPromise) {
  PhiloxStream random(static_cast<std::uint64_t>(GetParam()), 7);
  const auto up_to = [&](int most) { return 1 + static_cast<int>(random.below(static_cast<std::uint64_t>(most))); };
  settings_.learner.steps = 12;
  settings_.learner.publish_every = up_to(3);
  settings_.learner.checkpoint_every = up_to(3);
  settings_.learner.max_staleness = up_to(4) - 1;
  hub_.busy_fleet = random.below(2) == 0;
  const double trouble = random.uniform() / 2;
  hub_.next_upload = [&] {
    FakeHub::Upload upload{.visible = milliseconds(random.below(3000)), .answer = milliseconds(random.below(3000))};
    upload.lost = random.uniform() < trouble;
    if (random.uniform() < trouble) upload.failure = unavailable("the hub is away");
    return upload;
  };
  on_wait_ = [&] {
    if (random.below(200) == 0) control_->ask(LearnerControl::Request::kLeave);
    hub_.down = random.uniform() < trouble / 4;
  };
  for (int life = 0; life < 8; ++life) {
    const Status status = live(random.below(2) == 0 ? up_to(12) : 0);
    ASSERT_TRUE(status.ok() || status.code() == StatusCode::kInternal) << status.to_string();
  }
  on_wait_ = nullptr;
  hub_.down = false;
  hub_.next_upload = [] { return FakeHub::Upload{}; };
  ASSERT_TRUE(live().ok());
  EXPECT_EQ(events_.events("learner.finish").back().fields["step"], 12);
  EXPECT_EQ(hub_.run_state, RunState::kFinished);
  EXPECT_EQ(hub_.steps.back(), 12u);
  for (const Event& event : events_.events("learner.publish")) {
    const auto version = event.fields["version"].get<std::size_t>();
    EXPECT_EQ(event.fields["state"], hub_.versions.at(version).to_hex());
    EXPECT_EQ(event.fields["step"], hub_.steps.at(version));
  }
  // Within a life, none is left out.
  std::optional<int> previous;
  for (const Event& event : events_.events()) {
    if (event.kind == "learner.start") previous.reset();
    if (event.kind != "learner.publish") continue;
    const int step = event.fields["step"];
    EXPECT_LE(step - previous.value_or(step), settings_.learner.publish_every);
    previous = step;
  }
  check_events();
}

INSTANTIATE_TEST_SUITE_P(Seeds, LearnerLoopSchedule, testing::Range(0, 100));

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

TEST_F(LearnerLoopTest, TheWarmUpPausesToo) {
  settings_.warmup.demonstrations = 4;
  settings_.warmup.batch = 1;
  paused_at_start_ = true;
  int waits = 0;
  on_wait_ = [&] {
    if (++waits == 5) {
      EXPECT_TRUE(events_.events("learner.warmup_step").empty());
      control_->pause(false);
    }
  };
  ASSERT_TRUE(live().ok());
  EXPECT_GE(waits, 5);
  EXPECT_EQ(events_.events("learner.warmup_step").size(), 4u);
}

TEST_F(LearnerLoopTest, APausedWarmUpCanBeStoppedAndGoesOnLater) {
  settings_.warmup.demonstrations = 4;
  settings_.warmup.batch = 1;
  paused_at_start_ = true;
  int waits = 0;
  on_wait_ = [&] {
    if (++waits == 5) control_->ask(LearnerControl::Request::kFinish);
    ASSERT_LT(waits, 1000);
  };
  ASSERT_TRUE(live().ok());
  EXPECT_EQ(waits, 5);
  EXPECT_TRUE(events_.events("learner.warmup_step").empty());
  ASSERT_EQ(events_.events("learner.finish").size(), 1u);
  EXPECT_EQ(events_.events("learner.finish").back().fields["reason"], "stop");
  paused_at_start_ = false;
  on_wait_ = [] {};
  ASSERT_TRUE(live().ok());
  EXPECT_EQ(events_.events("learner.warmup_step").size(), 4u);
  EXPECT_EQ(hub_.run_state, RunState::kFinished);
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
