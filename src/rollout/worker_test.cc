#include "rollout/worker.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <set>

#include "rollout/group_file.h"
#include "rollout/memory_plan.h"
#include "rollout/run_for_tests.h"
#include "rollout/verify.h"
#include "rollout/worker_counter.h"
#include "store/fault_store.h"

namespace flotilla {
namespace {

using std::chrono::milliseconds;

class WorkerTest : public testing::Test {
 protected:
  explicit WorkerTest(const std::function<void(RunSpec&)>& change = [](RunSpec&) {}) : run_(change) {}

  WorkerOptions options() {
    WorkerOptions options;
    options.layout = run_.layout;
    options.learner_fingerprint = fingerprint(run_.learner->public_key());
    options.key = run_.worker;
    options.cache_folder = run_.scratch.path() / "cache";
    options.state_folder = run_.scratch.path() / "state";
    options.sweep_groups = 2;
    options.poll = milliseconds(1);
    options.retry = {.first = milliseconds(1), .last = milliseconds(4), .give_up = milliseconds(60'000)};
    options.open_environment = ToyRun::open_toy;
    return options;
  }

  RunningWorker start(const WorkerOptions& options) { return start(options, *run_.store); }
  RunningWorker start(const WorkerOptions& options, ObjectStore& store, const Clock& clock = system_clock()) {
    RunningWorker running;
    running.result = std::async(std::launch::async, [&, options, stop = running.stop.get_token()] {
      return run_worker(store, options, sink_, stop, clock);
    });
    return running;
  }

  std::vector<Group> groups() {
    std::vector<Group> groups;
    const auto objects = list_all(*run_.store, run_.layout.rollouts()).value();
    for (const ObjectInfo& info : objects) {
      groups.push_back(parse_group(run_.store->get(info.key)->bytes).value());
      EXPECT_EQ(info.key, run_.layout.rollout(groups.back().oldest_version(), groups.back().identity.worker,
                                              groups.back().identity.group));
    }
    return groups;
  }

  Status failure(const WorkerOptions& options) { return run_worker(*run_.store, options, sink_, {}).status(); }

  ToyRun run_;
  WaitingSink sink_;
};

TEST_F(WorkerTest, MakesGroupsThatVerify) {
  run_.publish();
  run_.want(64);
  RunningWorker worker = start(options());
  ASSERT_TRUE(sink_.wait_for("worker.upload", 5));
  const auto report = worker.end();
  ASSERT_TRUE(report.ok()) << report.status().to_string();
  EXPECT_EQ(report->reason, "stop");

  const std::vector<Group> made = groups();
  EXPECT_EQ(std::ssize(made), report->groups);
  EXPECT_EQ(report->dropped, 0) << "the sweep under way had time to end";
  const RunAssets assets = run_.assets().value();
  const auto engine = toy_engine(64);
  const auto subscriber =
      Subscriber::create(*run_.store, run_.layout, assets.description, run_.learner->public_key(), null_event_sink());
  GroupVerifier verifier(assets, *engine, [&](Version version) { return subscriber->fetch(version); });
  std::set<std::uint64_t> counters;
  for (const Group& group : made) {
    EXPECT_EQ(group.identity.worker, worker_id(run_.worker->public_key()));
    counters.insert(group.identity.counter);
    const auto verified = verifier.verify(group);
    EXPECT_TRUE(verified.ok()) << verified.status().to_string();
  }
  EXPECT_EQ(counters.size(), made.size());
  EXPECT_EQ(*counters.rbegin(), made.size() - 1);
}

TEST_F(WorkerTest, SwapsInTheNewestVersionBetweenSweeps) {
  run_.publish();
  run_.want(1000);
  RunningWorker worker = start(options());
  ASSERT_TRUE(sink_.wait_for("worker.upload", 2));
  run_.publish();
  ASSERT_TRUE(sink_.wait_for("worker.pull", 2));
  const std::size_t groups_before = sink_.events("worker.group").size();
  ASSERT_TRUE(sink_.wait_for("worker.group", groups_before + 2));
  ASSERT_TRUE(worker.end().ok());
  std::set<std::uint64_t> versions;
  for (const Group& group : groups()) versions.insert(group.oldest_version().value());
  EXPECT_EQ(versions, (std::set<std::uint64_t>{0, 1}));
  EXPECT_EQ(sink_.events("worker.pull")[1]["path"], "delta 1");
}

// A hub and an environment that hold a sweep up, at chosen steps of the environment, until the worker has fetched a
// version that was published there.
class PublishedWithinASweep {
 public:
  PublishedWithinASweep(ToyRun& run, std::set<int> steps)
      : run_(run), steps_(std::move(steps)), store_(*run.store, {}, 1, [this](const StoreCall& call) {
          const std::lock_guard lock(mutex_);
          if (!call.operation.starts_with("get")) return ok_status();
          fetching_ |= call.key == run_.layout.delta(newest_);
          // Whoever looks at head again has come to the end of the fetch before.
          if (call.key == run_.layout.head() && fetching_) fetched_ = newest_;
          changed_.notify_all();
          return ok_status();
        }) {}

  ObjectStore& store() { return store_; }
  EnvironmentOpener opener() {
    return [this](std::string_view, ByteSpan, const std::filesystem::path&) -> Result<std::unique_ptr<Environment>> {
      return std::unique_ptr<Environment>(std::make_unique<Gate>(*this));
    };
  }

 private:
  class Gate final : public ToyEnvironment {
   public:
    explicit Gate(PublishedWithinASweep& all) : all_(all) {}
    Result<Transition> step(const Task& task, std::span<const std::string> actions, std::uint64_t seed) const override {
      all_.step();
      return ToyEnvironment::step(task, actions, seed);
    }

   private:
    PublishedWithinASweep& all_;
  };

  void step() {
    if (!steps_.contains(++step_)) return;
    {
      const std::lock_guard lock(mutex_);
      newest_ = Version(newest_.value() + 1);
      fetching_ = false;
    }
    run_.publish();
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(changed_.wait_for(lock, std::chrono::minutes(1), [&] { return fetched_ == newest_; }));
  }

  ToyRun& run_;
  const std::set<int> steps_;
  int step_ = 0;
  std::mutex mutex_;
  std::condition_variable changed_;
  Version newest_;
  bool fetching_ = false;
  std::optional<Version> fetched_;
  FaultStore store_;
};

TEST_F(WorkerTest, TakesNewVersionsUnderRunningEpisodes) {
  for (const WeightSwap swap : {WeightSwap::kRecompute, WeightSwap::kKeep}) {
    PhiloxStream random(11, static_cast<std::uint64_t>(swap));
    for (int life = 0; life < 3; ++life) {
      ToyRun run([&](RunSpec& spec) { spec.swap = swap; });
      WaitingSink sink;
      run.publish();
      run.want(8);
      std::set<int> steps;
      while (steps.size() < 3) steps.insert(1 + static_cast<int>(random.below(20)));
      PublishedWithinASweep hub(run, steps);
      WorkerOptions options = this->options();
      options.layout = run.layout;
      options.learner_fingerprint = fingerprint(run.learner->public_key());
      options.state_folder = run.scratch.path() / "state";
      options.sweep_groups = 8;
      options.rows_per_call = 8;
      options.open_environment = hub.opener();
      std::stop_source stop;
      auto result =
          std::async(std::launch::async, [&] { return run_worker(hub.store(), options, sink, stop.get_token()); });
      EXPECT_TRUE(sink.wait_for("worker.upload", 8));
      stop.request_stop();
      const auto report = result.get();
      ASSERT_TRUE(report.ok()) << report.status().to_string();
      // Of two that were published between the same two forward calls, the later one alone is taken.
      const auto pulls = sink.events("worker.pull");
      EXPECT_GE(pulls.size(), 2u);
      EXPECT_EQ(pulls.back()["version"], 3);
      EXPECT_EQ(sink.events("worker.sweep").at(0)["version"], 3) << "all within the first sweep";

      const RunAssets assets = run.assets().value();
      const auto engine = toy_engine(64);
      const auto subscriber =
          Subscriber::create(*run.store, run.layout, assets.description, run.learner->public_key(), null_event_sink());
      GroupVerifier verifier(assets, *engine, [&](Version version) { return subscriber->fetch(version); });
      std::int64_t later = 0;
      const auto objects = list_all(*run.store, run.layout.rollouts()).value();
      for (const ObjectInfo& info : objects) {
        const Group group = parse_group(run.store->get(info.key)->bytes).value();
        EXPECT_EQ(info.key, run.layout.rollout(group.oldest_version(), group.identity.worker, group.identity.group));
        const auto verified = verifier.verify(group);
        EXPECT_TRUE(verified.ok()) << verified.status().to_string();
        for (const Episode& episode : group.episodes) {
          for (std::size_t i = 1; i < episode.spans.size(); ++i) {
            later += episode.spans[i].context == (swap == WeightSwap::kKeep ? SpanContext::kKept : SpanContext::kNew);
          }
        }
      }
      EXPECT_GT(later, 0);
    }
  }
}

TEST_F(WorkerTest, RefillsASweepUntilNoMoreGroupsAreWanted) {
  run_.publish();
  run_.want(13);
  WorkerOptions options = this->options();
  options.refill = true;
  RunningWorker worker = start(options);
  ASSERT_TRUE(sink_.wait_for("worker.upload", 13));
  ASSERT_TRUE(sink_.wait_for_reason("to count the groups"));
  ASSERT_TRUE(worker.end().ok());
  std::set<std::uint64_t> counters;
  for (const Group& group : groups()) counters.insert(group.identity.counter);
  EXPECT_EQ(counters.size(), 13u);
  EXPECT_EQ(*counters.rbegin(), 12u);
  std::int64_t told = 0;
  for (const auto& sweep : sink_.events("worker.sweep")) told += sweep["groups"].get<std::int64_t>();
  EXPECT_EQ(told, 13);
}

TEST_F(WorkerTest, RefillsNoSweepThatBeganWithFewerGroupsThanItMayHave) {
  run_.publish();
  run_.want(1);
  std::mutex mutex;
  std::condition_variable changed;
  int looks = 0;  // at head
  FaultStore store(*run_.store, {}, 1, [&](const StoreCall& call) {
    const std::lock_guard lock(mutex);
    if (call.operation.starts_with("get") && call.key == run_.layout.head()) ++looks;
    changed.notify_all();
    return ok_status();
  });
  // While its first sweep, of one group, is under way, thousands are wanted.
  std::once_flag first;
  const auto want_more = [&] {
    run_.want(10'000);
    std::unique_lock lock(mutex);
    EXPECT_TRUE(changed.wait_for(lock, std::chrono::minutes(1), [&, from = looks] { return looks >= from + 3; }));
  };
  class Eager final : public ToyEnvironment {
   public:
    explicit Eager(std::function<void()> on_step) : on_step_(std::move(on_step)) {}
    Result<Transition> step(const Task& task, std::span<const std::string> actions, std::uint64_t seed) const override {
      on_step_();
      return ToyEnvironment::step(task, actions, seed);
    }

   private:
    std::function<void()> on_step_;
  };
  WorkerOptions options = this->options();
  options.refill = true;
  options.sweep_groups = 8;
  options.upload_queue = 100'000;
  options.open_environment = [&](std::string_view, ByteSpan, const std::filesystem::path&) {
    return Result<std::unique_ptr<Environment>>(std::make_unique<Eager>([&] { std::call_once(first, want_more); }));
  };
  RunningWorker worker = start(options, store);
  ASSERT_TRUE(sink_.wait_for("worker.sweep", 3));
  ASSERT_TRUE(worker.end().ok());
  EXPECT_EQ(sink_.events("worker.sweep")[0]["groups"], 1);
  EXPECT_EQ(sink_.events("worker.sweep")[1]["groups"], 8);
}

TEST_F(WorkerTest, EndsARefilledSweepForANewVersion) {
  run_.publish();
  run_.want(100'000);
  WorkerOptions options = this->options();
  options.refill = true;
  RunningWorker worker = start(options);
  ASSERT_TRUE(sink_.wait_for("worker.upload", 4));
  run_.publish();
  ASSERT_TRUE(sink_.wait_for("worker.pull", 2));
  ASSERT_TRUE(worker.end().ok());
  for (const Group& group : groups()) {
    for (const Episode& episode : group.episodes) EXPECT_EQ(episode.spans.size(), 1u);
  }
}

class WorkerOfASwappingRunTest : public WorkerTest {
 protected:
  WorkerOfASwappingRunTest() : WorkerTest([](RunSpec& spec) { spec.swap = WeightSwap::kRecompute; }) {}
};

TEST_F(WorkerOfASwappingRunTest, LeavesARefilledSweepWhenTheRunIsFinished) {
  run_.publish();
  run_.want(100'000);
  WorkerOptions options = this->options();
  options.refill = true;
  RunningWorker worker = start(options);
  ASSERT_TRUE(sink_.wait_for("worker.upload", 4));
  run_.publish();
  ASSERT_TRUE(sink_.wait_for("worker.pull", 2));
  ASSERT_TRUE(sink_.wait_for("worker.sweep", sink_.events("worker.sweep").size() + 2)) << "tells how it goes on";
  run_.want(0, RunState::kFinished);
  const auto report = worker.result.get();
  ASSERT_TRUE(report.ok()) << report.status().to_string();
  EXPECT_EQ(report->reason, "finished");
  EXPECT_EQ(report->dropped, 0);
}

TEST_F(WorkerTest, WaitsForTheFirstVersionAndForAWish) {
  RunningWorker worker = start(options());
  ASSERT_TRUE(sink_.wait_for_reason("first version"));
  run_.want(0);
  run_.publish();
  ASSERT_TRUE(sink_.wait_for_reason("wants no groups"));
  run_.want(5, RunState::kPaused);
  ASSERT_TRUE(sink_.wait_for_reason("paused"));
  EXPECT_TRUE(sink_.events("worker.group").empty());
  run_.want(3);
  ASSERT_TRUE(sink_.wait_for_reason("to count the groups"));
  ASSERT_TRUE(worker.end().ok());
  EXPECT_EQ(groups().size(), 3u);
}

TEST_F(WorkerTest, GoesOnWhenItsGroupsWereLost) {
  run_.publish();
  run_.want(2);
  WorkerOptions impatient = options();
  impatient.patience = milliseconds(5);
  RunningWorker worker = start(impatient);
  EXPECT_TRUE(sink_.wait_for("worker.upload", 6));
  ASSERT_TRUE(worker.end().ok());
}

TEST_F(WorkerTest, LeavesWhenTheRunIsFinished) {
  run_.publish();
  run_.want(2);
  RunningWorker worker = start(options());
  ASSERT_TRUE(sink_.wait_for("worker.upload", 2));
  run_.want(0, RunState::kFinished);
  const auto report = worker.result.get();
  ASSERT_TRUE(report.ok()) << report.status().to_string();
  EXPECT_EQ(report->reason, "finished");
  EXPECT_EQ(report->groups, 2);
  EXPECT_EQ(sink_.events("worker.stop").size(), 1u);
}

TEST_F(WorkerTest, BeginsAgainWithCountersThatWereNeverUsed) {
  run_.publish();
  for (int life = 1; life <= 3; ++life) {
    run_.want(2 * life);
    RunningWorker worker = start(options());
    ASSERT_TRUE(sink_.wait_for("worker.upload", static_cast<std::size_t>(life * (life + 1))));
    ASSERT_TRUE(worker.end().ok());
  }
  std::set<std::uint64_t> counters;
  for (const Group& group : groups()) counters.insert(group.identity.counter);
  EXPECT_EQ(counters.size(), 12u);
}

TEST_F(WorkerTest, DropsTheSweepWhenTheGracePeriodIsOver) {
  run_.publish();
  run_.want(1000);
  WorkerOptions options = this->options();
  options.sweep_groups = 200;
  options.upload_queue = 200;
  options.rows_per_call = 1;
  options.stop_grace = milliseconds(0);
  RunningWorker worker = start(options);
  ASSERT_TRUE(sink_.wait_for("worker.group"));
  const auto report = worker.end();
  ASSERT_TRUE(report.ok()) << report.status().to_string();
  EXPECT_EQ(report->reason, "stop");
  EXPECT_GT(report->dropped, 0);
  EXPECT_TRUE(sink_.events("worker.sweep").empty());
  EXPECT_EQ(std::ssize(groups()), report->groups);
}

TEST_F(WorkerTest, TellsTheHubHowItIs) {
  run_.publish();
  run_.want(2);
  WorkerOptions often = options();
  often.status_interval = milliseconds(1);
  FaultStore store(*run_.store, {}, 1, [&](const StoreCall& call) {
    if (call.operation == "put") sink_.emit({"test.status", {{"key", call.key}}});
    return ok_status();
  });
  RunningWorker worker = start(often, store);
  ASSERT_TRUE(sink_.wait_for_reason("to count"));
  ASSERT_TRUE(sink_.wait_for("worker.upload", 2));
  // The one that is under way may be older.
  ASSERT_TRUE(sink_.wait_for("test.status", sink_.events("test.status").size() + 3));
  const std::string key = run_.layout.worker_status(worker_id(run_.worker->public_key()));
  const auto status = nlohmann::json::parse(as_text(run_.store->get(key)->bytes));
  ASSERT_TRUE(worker.end().ok());
  EXPECT_EQ(status["run"], "owner/run");
  EXPECT_EQ(status["state"], "waiting");
  EXPECT_EQ(status["uploaded"], 2);
  EXPECT_EQ(status["newest"], status["version"]) << "the lease";
  EXPECT_EQ(status["version"], 0);
  EXPECT_EQ(status["counter"], 2);
  EXPECT_EQ(status["operator"], status["worker"]);
  EXPECT_TRUE(status["waits_for"].get<std::string>().starts_with("the learner to count"));
}

TEST_F(WorkerTest, WorksThroughAHubThatFailsOften) {
  run_.publish();
  run_.want(8);
  FaultStore store(*run_.store, {.error = 0.2, .lost_answer = 0.2}, 7);
  RunningWorker worker = start(options(), store);
  ASSERT_TRUE(sink_.wait_for("worker.upload", 8));
  const auto report = worker.end();
  ASSERT_TRUE(report.ok()) << report.status().to_string();
  EXPECT_EQ(groups().size(), 8u);
  EXPECT_FALSE(sink_.events("hub.error").empty());
}

TEST_F(WorkerTest, WaitsForAHubWithoutSpace) {
  run_.publish();
  run_.want(2);
  std::atomic<int> refusals{0};
  FaultStore store(*run_.store, {}, 1, [&](const StoreCall& call) {
    const bool full = call.operation == "put_if_absent" && refusals < 3;
    return full ? (++refusals, resource_exhausted("no space left on the hub")) : ok_status();
  });
  RunningWorker worker = start(options(), store);
  ASSERT_TRUE(sink_.wait_for("worker.upload", 2));
  ASSERT_TRUE(worker.end().ok());
  EXPECT_EQ(groups().size(), 2u);
  EXPECT_NE(sink_.events("hub.error").at(0)["message"].get<std::string>().find("no space"), std::string::npos);
}

TEST_F(WorkerTest, EndsAtAHubThatRefusesItsGroups) {
  run_.publish();
  run_.want(64);
  FaultStore store(*run_.store, {}, 1, [](const StoreCall& call) {
    return call.operation == "put_if_absent" ? permission_denied("read-only") : ok_status();
  });
  RunningWorker worker = start(options(), store);
  const auto report = worker.result.get();
  EXPECT_EQ(report.status().code(), StatusCode::kPermissionDenied);
  EXPECT_NE(sink_.events("worker.stop").at(0)["reason"].get<std::string>().find("read-only"), std::string::npos);
}

TEST_F(WorkerTest, GivesUpAHubThatStaysAway) {
  WorkerOptions options = this->options();
  options.retry.give_up = milliseconds(5);
  FaultStore store(*run_.store, {.error = 1}, 1);
  const auto report = run_worker(store, options, sink_, {});
  EXPECT_EQ(report.status().code(), StatusCode::kUnavailable);
  EXPECT_NE(report.status().message().find("given up after"), std::string::npos);
}

TEST_F(WorkerTest, StopsWhileTheHubIsAway) {
  WorkerOptions options = this->options();
  options.retry.first = options.retry.last = milliseconds(60'000);
  FaultStore store(*run_.store, {.error = 1}, 1);
  RunningWorker worker = start(options, store);
  ASSERT_TRUE(sink_.wait_for("hub.error"));
  const auto report = worker.end();
  ASSERT_TRUE(report.ok()) << report.status().to_string();
  EXPECT_EQ(report->reason, "stop");
}

TEST_F(WorkerTest, StopsWhileItFetchesWeights) {
  run_.publish();
  run_.want(64);
  std::stop_source stop;
  std::atomic<bool> fetched{false};
  FaultStore store(*run_.store, {}, 1, [&](const StoreCall& call) {
    if (call.key == run_.layout.manifest(Version(0))) stop.request_stop();
    if (call.key == run_.layout.anchor(Version(0))) fetched = true;
    return ok_status();
  });
  const auto report = run_worker(store, options(), sink_, stop.get_token());
  ASSERT_TRUE(report.ok()) << report.status().to_string();
  EXPECT_EQ(report->reason, "stop");
  EXPECT_FALSE(fetched);
}

TEST_F(WorkerTest, IsOneProcessAtATime) {
  const auto other =
      WorkerCounter::open(run_.scratch.path() / "state", "owner/run", worker_id(run_.worker->public_key()));
  ASSERT_TRUE(other.ok());
  const Status status = failure(options());
  EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
  EXPECT_NE(status.message().find("another process"), std::string::npos);
}

TEST_F(WorkerTest, BelievesNoOtherLearner) {
  WorkerOptions options = this->options();
  options.learner_fingerprint = fingerprint(run_.worker->public_key());
  EXPECT_EQ(failure(options).code(), StatusCode::kPermissionDenied);
}

TEST_F(WorkerTest, SaysHowMuchMemoryItNeeds) {
  WorkerOptions options = this->options();
  options.memory_limit_bytes = 1000;
  const Status status = failure(options);
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_NE(status.message().find("MiB needed"), std::string::npos) << status.to_string();
}

TEST_F(WorkerTest, MakesTheSameGroupsWhenMemoryIsTight) {
  const Toy toy;
  MemoryDemand demand;
  demand.prompt_tokens = toy_model().description.context - 1;
  demand.groups = 8;
  demand.group_size = 3;
  const auto roomy = plan_memory(toy_model().description, toy.rules, demand, std::int64_t{1} << 40).value();
  const std::int64_t block_bytes = roomy.kv_bytes / roomy.kv_blocks;
  std::vector<std::map<std::string, Bytes>> made;
  std::vector<std::int64_t> evictions;
  for (const std::int64_t blocks : {roomy.kv_blocks, std::int64_t{10}}) {
    ToyRun run;
    WaitingSink sink;
    run.publish();
    run.want(8);
    WorkerOptions options = this->options();
    options.learner_fingerprint = fingerprint(run.learner->public_key());
    options.state_folder = run.scratch.path() / "state";
    options.sweep_groups = 8;
    options.memory_limit_bytes = roomy.total() - (roomy.kv_blocks - blocks) * block_bytes;
    std::stop_source stop;
    auto result =
        std::async(std::launch::async, [&] { return run_worker(*run.store, options, sink, stop.get_token()); });
    EXPECT_TRUE(sink.wait_for("worker.upload", 8));
    stop.request_stop();
    ASSERT_TRUE(result.get().ok());
    const auto objects = list_all(*run.store, run.layout.rollouts()).value();
    auto& groups = made.emplace_back();
    for (const ObjectInfo& info : objects) groups[info.key] = run.store->get(info.key)->bytes;
    evictions.push_back(sink.events("worker.sweep").at(0)["evictions"].get<std::int64_t>());
  }
  EXPECT_EQ(evictions[0], 0);
  EXPECT_GT(evictions[1], 0);
  EXPECT_EQ(made[0].size(), 8u);
  EXPECT_TRUE(made[0] == made[1]);
}

TEST_F(WorkerTest, FindsOutHowManyGroupsToSweep) {
  run_.publish();
  run_.want(10'000);
  WorkerOptions options = this->options();
  options.sweep_groups = 0;
  options.upload_queue = 100;
  RunningWorker worker = start(options);
  ASSERT_TRUE(sink_.wait_for("worker.sweep", 5));
  ASSERT_TRUE(worker.end().ok());
  std::vector<std::int64_t> groups;
  for (const auto& sweep : sink_.events("worker.sweep")) groups.push_back(sweep["groups"].get<std::int64_t>());
  EXPECT_EQ(groups.at(0), 1);
  EXPECT_EQ(groups.at(1), 1);
  EXPECT_EQ(groups.at(2), 2) << "one group is measured twice, then two";
}

TEST_F(WorkerTest, TakesLessWhileOthersUseTheMachine) {
  run_.publish();
  run_.want(10'000);
  WorkerOptions options = this->options();
  options.sweep_groups = 16;
  options.upload_queue = 100'000;  // so that uploads that are slower than the toy limit no sweep
  options.look_interval = milliseconds(0);
  std::atomic<int> phase{0};  // quiet, a foreground load, want of memory
  std::int64_t seconds = 0;
  options.machine_use = [&](std::chrono::nanoseconds) {
    return MachineUse{.time = std::chrono::seconds(++seconds),
                      .cores = 2,
                      .foreground = phase == 1 ? 2 : 0,
                      .memory_free = phase == 2 ? 0.01 : 0.5};
  };
  RunningWorker worker = start(options);
  const auto sweeps_of = [&](std::int64_t groups) {
    const auto sweeps = sink_.events("worker.sweep");
    return std::ranges::count_if(sweeps, [&](const auto& sweep) { return sweep["groups"] == groups; });
  };
  ASSERT_TRUE(sink_.wait_for("worker.sweep", 2));
  EXPECT_EQ(sweeps_of(16), 2);
  phase = 1;
  ASSERT_TRUE(sink_.wait_for("worker.limit"));
  EXPECT_EQ(sink_.events("worker.limit")[0]["time_share"], 0.1);
  // The sweep under way ends as it began; those after it are small.
  ASSERT_TRUE(sink_.wait_for("worker.sweep", sink_.events("worker.sweep").size() + 3));
  EXPECT_GE(sweeps_of(1), 1);
  phase = 2;
  const auto no_memory = [](const auto& limit) { return limit["memory_share"] == 1.0 / 256; };
  for (std::size_t limits = 1; std::ranges::none_of(sink_.events("worker.limit"), no_memory); ++limits) {
    ASSERT_TRUE(sink_.wait_for("worker.limit", limits));
  }
  phase = 0;
  const auto none = [](const auto& limit) { return limit["memory_share"] == 1.0 && limit["time_share"] == 1.0; };
  for (std::size_t limits = 1; std::ranges::none_of(sink_.events("worker.limit"), none); ++limits) {
    ASSERT_TRUE(sink_.wait_for("worker.limit", limits));
  }
  const auto before = sweeps_of(16);
  ASSERT_TRUE(sink_.wait_for("worker.sweep", sink_.events("worker.sweep").size() + 3));
  EXPECT_GT(sweeps_of(16), before);
  ASSERT_TRUE(worker.end().ok());
}

TEST_F(WorkerTest, AddsNoGroupsToASweepWhileOthersUseTheMachine) {
  run_.publish();
  run_.want(100'000);
  WorkerOptions options = this->options();
  options.refill = true;
  options.sweep_groups = 8;
  options.upload_queue = 100'000;  // so that uploads that are slower than the toy limit no sweep
  options.look_interval = milliseconds(0);
  std::atomic<int> phase{0};  // quiet, a foreground load, want of memory
  std::int64_t seconds = 0;
  options.machine_use = [&](std::chrono::nanoseconds) {
    return MachineUse{.time = std::chrono::seconds(++seconds),
                      .cores = 2,
                      .foreground = phase == 1 ? 2 : 0,
                      .memory_free = phase == 2 ? 0.01 : 0.5};
  };
  RunningWorker worker = start(options);
  const auto wait_for_a_sweep_of = [&](std::int64_t groups) {
    const std::size_t first = sink_.events("worker.sweep").size();
    for (std::size_t seen = first; seen < first + 100; ++seen) {
      if (!sink_.wait_for("worker.sweep", seen + 1)) return false;
      if (sink_.events("worker.sweep").at(seen)["groups"] == groups) return true;
    }
    return false;
  };
  for (const int limit : {1, 2}) {
    ASSERT_TRUE(wait_for_a_sweep_of(8));
    phase = limit;
    // One that is refilled would go on for ever, eight groups at a time.
    ASSERT_TRUE(wait_for_a_sweep_of(1)) << "phase " << limit;
    phase = 0;
  }
  ASSERT_TRUE(wait_for_a_sweep_of(8)) << "as before";
  const auto report = worker.end();
  ASSERT_TRUE(report.ok()) << report.status().to_string();
  EXPECT_EQ(report->dropped, 0);
  const std::vector<Group> made = groups();
  std::set<std::uint64_t> counters;
  for (const Group& group : made) counters.insert(group.identity.counter);
  EXPECT_EQ(counters.size(), made.size());
  EXPECT_EQ(*counters.rbegin(), made.size() - 1);
  const RunAssets assets = run_.assets().value();
  const auto engine = toy_engine(64);
  const auto subscriber =
      Subscriber::create(*run_.store, run_.layout, assets.description, run_.learner->public_key(), null_event_sink());
  GroupVerifier verifier(assets, *engine, [&](Version version) { return subscriber->fetch(version); });
  for (const auto& verified : verifier.verify(made)) EXPECT_TRUE(verified.ok()) << verified.status().to_string();
}

// Ten seconds later each time it is looked at: forward calls seem to take long, and so the rests after them are.
class LeapingClock final : public Clock {
 public:
  std::chrono::nanoseconds monotonic() const override { return std::chrono::seconds(looks_ += 10); }
  milliseconds wall() const override { return system_clock().wall(); }

 private:
  mutable std::atomic<std::int64_t> looks_{0};
};

TEST_F(WorkerTest, LeavesInARest) {
  run_.publish();
  run_.want(10'000);
  WorkerOptions options = this->options();
  options.look_interval = milliseconds(0);
  options.stop_grace = milliseconds(0);
  std::int64_t seconds = 0;
  options.machine_use = [&](std::chrono::nanoseconds) {
    return MachineUse{.time = std::chrono::seconds(++seconds), .cores = 2, .foreground = 2};
  };
  const LeapingClock clock;
  RunningWorker worker = start(options, *run_.store, clock);
  ASSERT_TRUE(sink_.wait_for("worker.limit"));
  const auto begin = std::chrono::steady_clock::now();
  ASSERT_TRUE(worker.end().ok());
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(40)) << "a rest takes a minute";
}

TEST_F(WorkerTest, RefusesOptionsThatMakeNoSense) {
  for (const auto change : std::initializer_list<void (*)(WorkerOptions&)>{
           [](WorkerOptions& o) { o.key = nullptr; }, [](WorkerOptions& o) { o.sweep_groups = -1; },
           [](WorkerOptions& o) { o.refill = true, o.sweep_groups = 0; }, [](WorkerOptions& o) { o.upload_queue = 0; },
           [](WorkerOptions& o) { o.rows_per_call = 0; }, [](WorkerOptions& o) { o.operator_name = "a b"; },
           [](WorkerOptions& o) { o.operator_name = "a/b"; }}) {
    WorkerOptions options = this->options();
    change(options);
    EXPECT_EQ(failure(options).code(), StatusCode::kInvalidArgument);
  }
}

TEST_F(WorkerTest, RefusesARunOfAnArithmeticThatItsEngineLacks) {
  ToyRun run([](RunSpec& spec) { spec.arithmetic = kArithmetic + 1; });
  run.publish();
  run.want(64);
  const Status status = run_worker(*run.store, options(), sink_, {}).status();
  EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition) << status.to_string();
  EXPECT_NE(status.message().find("arithmetic"), std::string::npos) << status.to_string();
  EXPECT_TRUE(list_all(*run.store, run.layout.rollouts()).value().empty());
}

}  // namespace
}  // namespace flotilla
