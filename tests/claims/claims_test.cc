#include <gtest/gtest.h>

#include <future>
#include <map>
#include <set>

#include "rollout/claim_ledger.h"
#include "rollout/group_file.h"
#include "rollout/run_for_tests.h"
#include "rollout/worker.h"
#include "rollout/worker_counter.h"
#include "served_hub.h"
#include "store/open_store.h"

namespace flotilla {
namespace {

using std::chrono::milliseconds;

class ClaimsOverHubTest : public testing::Test {
 protected:
  ClaimsOverHubTest() : run_([](RunSpec& spec) { spec.claims = 8; }) {
    run_.publish();
    run_.want(100'000);
    folder_ = open_directory_store(hub_->folder(), false).value();
    const auto objects = list_all(*run_.store, "").value();
    for (const ObjectInfo& info : objects) {
      EXPECT_TRUE(folder_->put_if_absent(info.key, run_.store->get(info.key)->bytes).ok());
    }
  }

  std::unique_ptr<ObjectStore> store_of(const SigningKey& worker) {
    hub_->be_worker(run_.layout.prefix, worker_id(worker.public_key()).value());
    return open_store(hub_->address(), false).value();
  }

  ToyRun run_;
  std::unique_ptr<ServedHub> hub_ = ServedHub::start();
  std::unique_ptr<ObjectStore> folder_;
};

TEST_F(ClaimsOverHubTest, WorkersWithTokensDoEachTaskOnceAnEpoch) {
  struct Worker {
    std::shared_ptr<const SigningKey> key = SigningKey::generate().value();
    WaitingSink sink;
    std::unique_ptr<ObjectStore> store;
    std::future<Result<WorkerReport>> result;
  };
  std::stop_source stop;
  std::map<int, Worker> workers;
  // A token is in the environment until its store is open, and that is changed only while there is no other thread.
  for (int i = 0; i < 3; ++i) workers[i].store = store_of(*workers[i].key);
  for (auto& [number, worker] : workers) {
    WorkerOptions options;
    options.layout = run_.layout;
    options.key = worker.key;
    options.cache_folder = run_.scratch.path() / "cache";
    options.state_folder = run_.scratch.path() / "state";
    options.sweep_groups = 4;
    options.poll = milliseconds(5);
    options.open_environment = ToyRun::open_toy;
    worker.result = std::async(std::launch::async, [&worker, options, token = stop.get_token()] {
      return run_worker(*worker.store, options, worker.sink, token);
    });
  }
  bool enough = true;
  for (auto& [number, worker] : workers) enough = worker.sink.wait_for("worker.upload", 40) && enough;
  stop.request_stop();
  for (auto& [number, worker] : workers) {
    const auto report = worker.result.get();
    ASSERT_TRUE(report.ok()) << report.status().to_string();
  }
  ASSERT_TRUE(enough);

  const TaskOrder order = task_order(run_.spec, ToyEnvironment().task_count(Split::kTrain));
  ClaimLedger ledger(*folder_, run_.layout, order);
  std::map<std::uint64_t, WorkerId> made;
  std::set<WorkerId> makers;
  const auto objects = list_all(*folder_, run_.layout.rollouts()).value();
  for (const ObjectInfo& info : objects) {
    const Group group = parse_group(folder_->get(info.key)->bytes).value();
    EXPECT_TRUE(made.emplace(group.identity.counter, group.identity.worker).second) << "done twice";
    makers.insert(group.identity.worker);
    const Status allowed = ledger.check(group.identity.worker, group.identity.counter);
    EXPECT_TRUE(allowed.ok()) << allowed.to_string();
  }
  EXPECT_EQ(makers.size(), 3u);
}

TEST_F(ClaimsOverHubTest, AClaimIsNobodysToChange) {
  const auto mine = SigningKey::generate().value(), other = SigningKey::generate().value();
  const WorkerId me = worker_id(mine->public_key()), them = worker_id(other->public_key());
  const auto store = store_of(*mine);
  const ClaimId id{0, 3, 0};
  const std::string text = claim_to_json(run_.layout.prefix, id, *mine);
  ASSERT_TRUE(store->put_if_absent(claim_key(run_.layout, id), as_bytes(text)).ok());
  const auto other_store = store_of(*other);
  const ETag tag = other_store->get(claim_key(run_.layout, id))->etag;
  EXPECT_EQ(other_store->put_if_absent(claim_key(run_.layout, id), {}).status().code(), StatusCode::kAlreadyExists);
  EXPECT_FALSE(other_store->put(claim_key(run_.layout, id), {}).ok());
  EXPECT_FALSE(other_store->put_if_match(claim_key(run_.layout, id), {}, tag).ok());
  EXPECT_FALSE(other_store->remove(claim_key(run_.layout, id)).ok());
  EXPECT_EQ(other_store->put_if_absent(done_key(run_.layout, id, me), {}).status().code(),
            StatusCode::kPermissionDenied);
  EXPECT_TRUE(other_store->put_if_absent(done_key(run_.layout, id, them), {}).ok());
  EXPECT_EQ(as_text(store->get(claim_key(run_.layout, id))->bytes), text);
}

}  // namespace
}  // namespace flotilla
