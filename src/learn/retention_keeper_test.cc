#include "learn/retention_keeper.h"

#include <gtest/gtest.h>

#include "base/log.h"
#include "rollout/run_for_tests.h"
#include "store/fault_store.h"
#include "store/quota_store.h"

namespace flotilla {
namespace {

class RetentionKeeperTest : public testing::Test {
 protected:
  static void SetUpTestSuite() { set_log_level(LogLevel::kError); }
  static void TearDownTestSuite() { set_log_level(LogLevel::kInfo); }

  std::unique_ptr<Publisher> publisher(ObjectStore& store) {
    return Publisher::open(store, layout_, description_, key_, {.anchor_every = 1}, null_event_sink()).value();
  }
  void train() { state_.tensors[0].q[0] = static_cast<std::int8_t>((state_.tensors[0].q[0] + 1) % 100); }
  RunRetention retention(ObjectStore& store) { return {store, layout_, key_->public_key()}; }
  std::uint64_t bytes_in(ObjectStore& store) {
    std::uint64_t bytes = 0;
    const auto objects = list_all(store, layout_.prefix + "/").value();
    for (const ObjectInfo& object : objects) bytes += object.size;
    return bytes;
  }
  bool has(std::uint64_t version) { return hub_->get(layout_.manifest(Version(version))).ok(); }

  const HubLayout layout_{"owner/run"};
  const ModelDescription description_ = toy_model().description;
  const std::unique_ptr<ObjectStore> hub_ = make_memory_store();
  const std::shared_ptr<const SigningKey> key_ = SigningKey::generate().value();
  GridState state_ = toy_model().state;
  WaitingSink events_;
};

TEST_F(RetentionKeeperTest, CleansUpBesideTrainingAndOutlivesAHubThatIsAway) {
  const auto learner = publisher(*hub_);
  for (std::uint64_t version = 0; version < 10; ++version, train()) ASSERT_TRUE(learner->publish(state_, 0).ok());
  std::atomic<int> failures = 3;
  FaultStore hub(*hub_, {}, 1, [&](const StoreCall& call) {
    return call.operation == "list" && failures-- > 0 ? unavailable("away") : ok_status();
  });
  std::atomic<int> looks = 0;
  {
    const RetentionKeeper keeper(retention(hub),
                                 {.rules = {.staleness = 0}, .every = std::chrono::milliseconds(1), .objects_max = 3},
                                 events_, [&] { ++looks; });
    ASSERT_TRUE(events_.wait_for("learner.clean", 7));
  }
  EXPECT_GT(looks, 7) << "some have failed";
  for (std::uint64_t version = 0; version < 10; ++version)
    EXPECT_EQ(has(version), version == 0 || version >= 8) << version;
  EXPECT_EQ(events_.events("learner.clean").front()["objects"], 3);
  EXPECT_EQ(events_.events("learner.clean").back()["left"], 0);
}

TEST_F(RetentionKeeperTest, WithoutLooksWhatFollowsThemIsCalledAllTheSame) {
  const auto learner = publisher(*hub_);
  for (std::uint64_t version = 0; version < 4; ++version, train()) ASSERT_TRUE(learner->publish(state_, 0).ok());
  std::atomic<int> calls = 0;
  RetentionKeeper keeper(retention(*hub_),
                         {.rules = {.staleness = 0}, .every = {}, .after_every = std::chrono::milliseconds(1)}, events_,
                         [&] { ++calls; });
  while (calls < 2) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_TRUE(has(1));
}

TEST_F(RetentionKeeperTest, WhoLeavesWaitsForNoRoom) {
  const auto learner = publisher(*hub_);
  for (std::uint64_t version = 0; version < 10; ++version, train()) ASSERT_TRUE(learner->publish(state_, 0).ok());
  std::stop_source stop;
  int removals = 0;
  FaultStore hub(*hub_, {}, 1, [&](const StoreCall& call) {
    if (call.operation == "remove" && ++removals == 2) stop.request_stop();
    return ok_status();
  });
  RetentionKeeper keeper(retention(hub), {.rules = {.staleness = 0}, .every = {}, .stop = stop.get_token()}, events_,
                         [] {});
  EXPECT_EQ(keeper.make_room().code(), StatusCode::kCancelled);
  EXPECT_EQ(removals, 2);
}

// The learner, its quota and the clean-up together, over many versions and groups.
TEST_F(RetentionKeeperTest, ARunStaysWithinItsQuotaAndGoesOn) {
  std::uint64_t version_bytes = 0;
  {
    const auto store = make_memory_store();
    ASSERT_TRUE(publisher(*store)->publish(state_, 0).ok());
    version_bytes = bytes_in(*store);
  }
  const std::uint64_t most = (1 << 20) + 8 * version_bytes;
  RetentionKeeper* cleaner = nullptr;
  ManualClock clock;
  QuotaStore quota(*hub_,
                   {.prefix = "owner/run/",
                    .bytes_max = most,
                    .make_room = [&] { return cleaner->make_room(); },
                    .setting = "retention.quota_mib"},
                   clock);
  RetentionKeeper keeper(retention(*hub_), {.rules = {.staleness = 1}, .every = {}}, events_, [] {});
  cleaner = &keeper;
  const auto learner = publisher(quota);
  for (std::uint64_t version = 0; version < 60; ++version, train()) {
    const auto done = learner->publish(state_, 0);
    ASSERT_TRUE(done.ok()) << done.status().to_string();
    const std::string key = layout_.rollout(done->version, WorkerId("w"), GroupId("g"));
    ASSERT_TRUE(hub_->put_if_absent(key, Bytes(version_bytes / 4)).ok());
    ASSERT_TRUE(hub_->put(layout_.worker_status(WorkerId("w")), as_bytes(R"({"version":0})")).ok());
    EXPECT_LE(bytes_in(*hub_), most);
    clock.advance(std::chrono::minutes(2));
  }
  EXPECT_GE(events_.events("learner.clean").size(), 2u);
  // What cannot be made room for is refused, and nothing that is needed goes for it.
  ASSERT_TRUE(hub_->put("owner/run/events/learner/0", Bytes(most)).ok());
  const auto refused = learner->publish(state_, 0);
  EXPECT_EQ(refused.status().code(), StatusCode::kResourceExhausted);
  EXPECT_TRUE(quota.crowded());
  EXPECT_TRUE(has(59));
  ASSERT_TRUE(hub_->remove("owner/run/events/learner/0").ok());
  EXPECT_TRUE(learner->publish(state_, 0).ok());
}

}  // namespace
}  // namespace flotilla
