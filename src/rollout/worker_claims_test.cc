// Workers of a run with claims, on hubs in memory, in a folder, and on one that fails.
#include <gtest/gtest.h>

#include <future>
#include <set>

#include "rollout/claim_ledger.h"
#include "rollout/group_file.h"
#include "rollout/run_for_tests.h"
#include "rollout/verify.h"
#include "rollout/worker.h"
#include "rollout/worker_counter.h"
#include "store/fault_store.h"

namespace flotilla {
namespace {

using std::chrono::milliseconds;

constexpr std::int32_t kBlock = 4;
constexpr std::uint64_t kTasks = 22;  // five blocks and a half

class FewTasks final : public ToyEnvironment {
 public:
  std::uint64_t task_count(Split split) const override {
    return split == Split::kTrain ? kTasks : ToyEnvironment::task_count(split);
  }
};

class WorkerClaimsTest : public testing::Test {
 protected:
  WorkerClaimsTest() : run_([](RunSpec& spec) { spec.claims = kBlock; }) {
    run_.publish();
    run_.want(100'000);
  }

  static Result<std::unique_ptr<Environment>> open_few(std::string_view, ByteSpan, const std::filesystem::path&) {
    return std::unique_ptr<Environment>(std::make_unique<FewTasks>());
  }

  RunningWorker start(
      const std::shared_ptr<const SigningKey>& key, ObjectStore& store, WaitingSink& sink,
      const std::function<void(WorkerOptions&)>& change = [](WorkerOptions&) {}) {
    WorkerOptions options;
    options.layout = run_.layout;
    options.key = key;
    options.cache_folder = run_.scratch.path() / "cache";
    options.state_folder = run_.scratch.path() / "state";
    options.sweep_groups = 3;
    options.poll = milliseconds(1);
    options.retry = {.first = milliseconds(1), .last = milliseconds(4), .give_up = milliseconds(60'000)};
    options.open_environment = open_few;
    change(options);
    RunningWorker running;
    running.result = std::async(std::launch::async, [&, options, stop = running.stop.get_token()] {
      return run_worker(store, options, sink, stop);
    });
    return running;
  }

  std::vector<Group> groups(ObjectStore& store) {
    std::vector<Group> groups;
    const auto objects = list_all(store, run_.layout.rollouts()).value();
    for (const ObjectInfo& info : objects) groups.push_back(parse_group(store.get(info.key)->bytes).value());
    return groups;
  }

  // What two workers have made, each task once an epoch and each as the learner allows it.
  void expect_shared(ObjectStore& store) {
    const RunAssets assets = open_run_assets(store, run_.layout, "", run_.scratch.path() / "check", open_few).value();
    const auto engine = toy_engine(64);
    const auto subscriber =
        Subscriber::create(store, run_.layout, assets.description, run_.learner->public_key(), null_event_sink());
    GroupVerifier verifier(assets, *engine, [&](Version version) { return subscriber->fetch(version); });
    ClaimLedger ledger(store, run_.layout, order_);
    std::map<std::uint64_t, std::uint64_t> tasks;  // by counter
    std::set<WorkerId> workers;
    for (const Group& group : groups(store)) {
      const auto verified = verifier.verify(group);
      EXPECT_TRUE(verified.ok()) << verified.status().to_string();
      const Status allowed = ledger.check(group.identity.worker, group.identity.counter);
      EXPECT_TRUE(allowed.ok()) << allowed.to_string();
      EXPECT_TRUE(tasks.emplace(group.identity.counter, group.identity.task).second) << "done twice";
      workers.insert(group.identity.worker);
    }
    EXPECT_EQ(workers.size(), 2u);
    // The first epoch is whole.
    std::set<std::uint64_t> first;
    for (std::uint64_t counter = 0; counter < kTasks; ++counter) first.insert(tasks.at(counter));
    EXPECT_EQ(first.size(), kTasks);
  }

  void let_two_work(ObjectStore& store) {
    WaitingSink one, two;
    RunningWorker a = start(run_.worker, store, one);
    RunningWorker b = start(other_, store, two);
    ASSERT_TRUE(one.wait_for("worker.upload", 40));
    ASSERT_TRUE(two.wait_for("worker.upload", 40));
    for (RunningWorker* worker : {&a, &b}) {
      const auto report = worker->end();
      ASSERT_TRUE(report.ok()) << report.status().to_string();
      EXPECT_EQ(report->dropped, 0);
    }
  }

  ToyRun run_;
  std::shared_ptr<const SigningKey> other_ = SigningKey::generate().value();
  TaskOrder order_ = task_order(run_.spec, kTasks);
};

TEST_F(WorkerClaimsTest, TwoWorkersDoEachTaskOnceAnEpoch) {
  let_two_work(*run_.store);
  expect_shared(*run_.store);
}

TEST_F(WorkerClaimsTest, TwoWorkersShareAFolder) {
  const auto folder = open_directory_store((run_.scratch.path() / "hub").string(), true).value();
  const auto objects = list_all(*run_.store, "").value();
  for (const ObjectInfo& info : objects) {
    ASSERT_TRUE(folder->put_if_absent(info.key, run_.store->get(info.key)->bytes).ok());
  }
  let_two_work(*folder);
  expect_shared(*folder);
}

TEST_F(WorkerClaimsTest, TwoWorkersShareAHubThatFailsOften) {
  FaultStore store(*run_.store, {.error = 0.1, .lost_answer = 0.1}, 7);
  let_two_work(store);
  expect_shared(*run_.store);
}

TEST_F(WorkerClaimsTest, ALifeGoesOnWhereTheLastOneEnded) {
  WaitingSink sink;
  for (std::size_t life = 1; life <= 4; ++life) {
    RunningWorker worker = start(run_.worker, *run_.store, sink, [&](WorkerOptions& options) {
      options.stop_grace = milliseconds(life % 2 == 0 ? 10'000 : 0);  // dropped, or brought to its end
    });
    ASSERT_TRUE(sink.wait_for("worker.upload", sink.events("worker.upload").size() + 3));
    ASSERT_TRUE(worker.end().ok());
  }
  std::set<std::uint64_t> counters;
  for (const Group& group : groups(*run_.store)) EXPECT_TRUE(counters.insert(group.identity.counter).second);
  std::set<std::uint64_t> blocks;
  for (const std::uint64_t counter : counters) blocks.insert(counter / kTasks * 6 + counter % kTasks / kBlock);
  EXPECT_LE(blocks.size(), counters.size() / kBlock + 2) << "it leaves no block before it is done";
}

TEST_F(WorkerClaimsTest, TakesOverWhatADeadWorkerHasLeft) {
  WaitingSink one, two;
  const auto short_lease = [](WorkerOptions& options) {
    options.lease = milliseconds(300);
    options.status_interval = milliseconds(20);
  };
  RunningWorker dead = start(run_.worker, *run_.store, one, [&](WorkerOptions& options) {
    short_lease(options);
    options.stop_grace = milliseconds(0);
  });
  ASSERT_TRUE(one.wait_for("worker.upload", 9));
  ASSERT_TRUE(dead.end().ok());
  const auto unfinished = [&] {
    std::set<std::pair<std::uint64_t, std::uint64_t>> blocks;
    const auto objects = list_all(*run_.store, run_.layout.claims()).value();
    for (const ObjectInfo& info : objects) {
      const ClaimName name = read_claim_key(run_.layout, info.key).value();
      if (name.done_by) blocks.erase({name.id.epoch, name.id.block});
      if (!name.done_by) blocks.emplace(name.id.epoch, name.id.block);
    }
    return blocks;
  };
  const auto left = unfinished();
  ASSERT_FALSE(left.empty());
  RunningWorker heir = start(other_, *run_.store, two, short_lease);
  for (std::size_t claims = 1;; ++claims) {
    ASSERT_TRUE(two.wait_for("worker.claim", claims));
    const auto claim = two.events("worker.claim")[claims - 1];
    if (claim["lease"] == 1 && left.contains({claim["epoch"], claim["block"]})) break;
  }
  ASSERT_TRUE(heir.end().ok());
  std::map<std::uint64_t, std::set<WorkerId>> makers;
  for (const Group& group : groups(*run_.store)) makers[group.identity.counter].insert(group.identity.worker);
  for (const auto& [counter, of] : makers) {
    if (of.size() > 1) {
      EXPECT_TRUE(left.contains({order_.epoch_of(counter), order_.block_of(counter)})) << counter;
    }
  }
}

TEST_F(WorkerClaimsTest, RefillsASweepFromBlockToBlock) {
  WaitingSink sink;
  RunningWorker worker = start(run_.worker, *run_.store, sink, [](WorkerOptions& options) { options.refill = true; });
  ASSERT_TRUE(sink.wait_for("worker.upload", 30));
  ASSERT_TRUE(worker.end().ok());
  std::set<std::uint64_t> counters;
  for (const Group& group : groups(*run_.store)) EXPECT_TRUE(counters.insert(group.identity.counter).second);
}

TEST_F(WorkerClaimsTest, EndsAtAHubThatRefusesItsClaims) {
  WaitingSink sink;
  FaultStore store(*run_.store, {}, 1, [&](const StoreCall& call) {
    return call.operation == "put_if_absent" ? permission_denied("read-only") : ok_status();
  });
  RunningWorker worker = start(run_.worker, store, sink);
  const auto report = worker.result.get();
  EXPECT_EQ(report.status().code(), StatusCode::kPermissionDenied) << report.status().to_string();
  EXPECT_NE(report.status().message().find("claims"), std::string::npos);
}

TEST_F(WorkerClaimsTest, ClaimsLittleWhileTheLearnerHasEnough) {
  run_.want(3);
  WaitingSink sink;
  RunningWorker worker = start(run_.worker, *run_.store, sink);
  ASSERT_TRUE(sink.wait_for_reason("to count the groups"));
  ASSERT_TRUE(sink.wait_for("worker.upload", 3));
  ASSERT_TRUE(worker.end().ok());
  EXPECT_EQ(groups(*run_.store).size(), 3u);
  EXPECT_LE(sink.events("worker.claim").size(), 2u);
}

}  // namespace
}  // namespace flotilla
