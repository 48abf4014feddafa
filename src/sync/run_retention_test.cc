// Retention on a hub with real versions, a learner that goes on, workers that follow, and faults at every operation.
#include "sync/run_retention.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include <fmt/format.h>

#include "base/log.h"
#include "store/fault_store.h"
#include "sync/publisher.h"
#include "sync/state_holder_for_tests.h"
#include "sync/test_model.h"

namespace flotilla {
namespace {

using ::testing::HasSubstr;

constexpr std::size_t kAll = 1 << 20;

class RunRetentionTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { set_log_level(LogLevel::kError); }
  static void TearDownTestSuite() { set_log_level(LogLevel::kInfo); }

  // Versions 0 to `last`, an anchor every three.
  void publish(std::uint64_t last) {
    if (!publisher_) {
      publisher_ = Publisher::open(*hub_, layout_, description_, test_key(), {3}, null_event_sink()).value();
    }
    while (!publisher_->head() || publisher_->head()->version.value() < last) {
      state_ = changed_state(description_, state_, {.integers = 0.01, .vectors = 0.05, .scales = 0}, random_);
      ASSERT_TRUE(publisher_->publish(state_, 0).ok());
    }
  }
  RunRetention retention(ObjectStore& store) { return {store, layout_, test_key()->public_key()}; }
  std::vector<std::uint64_t> readable() {
    std::vector<std::uint64_t> found;
    StateHolder reader(*hub_, layout_, description_);
    for (std::uint64_t i = 0; i <= publisher_->head()->version.value(); ++i) {
      if (reader.fetch(Version(i)).ok()) found.push_back(i);
    }
    return found;
  }
  std::set<std::string> keys() {
    std::set<std::string> keys;
    const auto objects = list_all(*hub_, "").value();
    for (const ObjectInfo& object : objects) keys.insert(object.key);
    return keys;
  }
  void put(const std::string& key, std::string_view text) { ASSERT_TRUE(hub_->put(key, as_bytes(text)).ok()); }
  void remake() {
    hub_ = make_memory_store();
    publisher_.reset();
  }

  const HubLayout layout_{"owner/run"};
  const ModelDescription description_ = test_description();
  std::unique_ptr<ObjectStore> hub_ = make_memory_store();
  PhiloxStream random_{5, 0};
  GridState state_ = random_state(description_, random_);
  std::unique_ptr<Publisher> publisher_;
};

TEST_F(RunRetentionTest, WhatStaysCanBeReadAndTheNextVersionToo) {
  publish(11);
  auto retention = this->retention(*hub_);
  const auto plan = retention.plan({});
  ASSERT_TRUE(plan.ok()) << plan.status().to_string();
  std::uint64_t bytes = 0;
  const auto objects = list_all(*hub_, layout_.weights_folder()).value();
  for (const ObjectInfo& object : objects) bytes += object.size;
  EXPECT_EQ(bytes, plan->kept_bytes + plan->remove_bytes);
  const auto removed = retention.remove(*plan, kAll);
  EXPECT_TRUE(removed.status.ok());
  EXPECT_EQ(removed.bytes, plan->remove_bytes);
  EXPECT_THAT(readable(), ::testing::ElementsAre(0, 6, 7, 8, 9, 10, 11));
  publish(12);
  StateHolder worker(*hub_, layout_, description_);
  ASSERT_TRUE(worker.poll().ok());
  EXPECT_EQ(*worker.pull()->state, state_);
}

TEST_F(RunRetentionTest, WithoutAVersionThereIsNothingToDo) {
  EXPECT_EQ(retention(*hub_).plan({}).status().code(), StatusCode::kNotFound);
}

TEST_F(RunRetentionTest, AWorkersStatusKeepsWhatItHoldsAndRubbishKeepsNothing) {
  publish(14);
  put(layout_.worker_status(WorkerId("a")), R"({"version":4,"newest":4})");
  put(layout_.worker_status(WorkerId("b")), "rubbish");
  put(layout_.worker_status(WorkerId("c")), std::string(100'000, ' ') + R"({"version":7})");
  auto retention = this->retention(*hub_);
  (void)retention.remove(retention.plan({}).value(), kAll);
  EXPECT_THAT(readable(), ::testing::ElementsAre(0, 3, 4, 9, 10, 11, 12, 13, 14));
  // Whoever is out of room need not wait for leases.
  (void)retention.remove(retention.plan({.groups = {}, .leases = {}}).value(), kAll);
  EXPECT_THAT(readable(), ::testing::ElementsAre(0, 9, 10, 11, 12, 13, 14));
}

TEST_F(RunRetentionTest, AWorkerWithoutALeaseThatIsSurprisedTakesTheAnchor) {
  publish(2);
  StateHolder worker(*hub_, layout_, description_);
  ASSERT_TRUE(worker.poll().ok());
  ASSERT_TRUE(worker.pull().ok());
  publish(4);
  ASSERT_TRUE(worker.poll().ok());  // and then it sleeps
  publish(14);
  auto retention = this->retention(*hub_);
  (void)retention.remove(retention.plan({}).value(), kAll);
  const auto pulled = worker.pull();
  ASSERT_TRUE(pulled.ok()) << pulled.status().to_string();
  EXPECT_EQ(pulled->version, Version(14));
  EXPECT_EQ(*pulled->state, state_);
  EXPECT_THAT(pulled->path, HasSubstr("anchor 12"));
  const auto gone = worker.fetch(Version(4));
  EXPECT_EQ(gone.status().code(), StatusCode::kNotFound);
  EXPECT_THAT(gone.status().message(), HasSubstr("version 4 is not on the hub"));
}

TEST_F(RunRetentionTest, ACleanUpMayDieAtEveryOperationAndTheNextEndsIt) {
  std::set<std::string> whole;
  std::uint64_t operations = 0;
  {
    publish(8);
    FaultStore store(*hub_, {}, 1);
    auto retention = this->retention(store);
    ASSERT_TRUE(retention.remove(retention.plan({}).value(), kAll).status.ok());
    operations = store.operations();
    whole = keys();
  }
  for (std::uint64_t at = 0; at < operations; ++at) {
    for (const CrashPoint point : {CrashPoint::kBefore, CrashPoint::kAfter}) {
      SCOPED_TRACE(fmt::format("operation {}", at));
      remake();
      publish(8);
      {
        FaultStore dying(*hub_, {}, 1);
        dying.crash_at(at, point);
        auto retention = this->retention(dying);
        const auto plan = retention.plan({});
        if (plan.ok()) {
          const bool done = retention.remove(*plan, kAll).status.ok();
          EXPECT_NE(done, dying.crashed());
        }
      }
      // Each version with a manifest can be read.
      StateHolder reader(*hub_, layout_, description_);
      for (std::uint64_t i = 0; i <= 8; ++i) {
        if (!hub_->get(layout_.manifest(Version(i))).ok()) continue;
        EXPECT_TRUE(reader.fetch(Version(i)).ok()) << i;
      }
      auto next = retention(*hub_);
      ASSERT_TRUE(next.remove(next.plan({}).value(), kAll).status.ok());
      EXPECT_EQ(keys(), whole);
      if (HasFailure()) return;
    }
  }
}

TEST_F(RunRetentionTest, AHubThatFailsLosesNothingThatIsNeeded) {
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    remake();
    publish(8);
    put(layout_.worker_status(WorkerId("a")), R"({"version":1,"newest":1})");
    FaultStore store(*hub_, {.error = 0.05, .lost_answer = 0.05, .torn_write = 0, .corrupt_read = 0.05}, seed);
    auto retention = this->retention(store);
    int looks = 0;
    for (bool done = false; !done && looks < 200; ++looks) {
      const auto plan = retention.plan({});
      done = plan.ok() && retention.remove(*plan, 3).status.ok() && plan->remove.empty();
      if (plan.ok()) continue;
      const StatusCode code = plan.status().code();
      EXPECT_TRUE(code == StatusCode::kUnavailable || code == StatusCode::kDataLoss ||
                  code == StatusCode::kPermissionDenied)
          << plan.status().to_string();
    }
    EXPECT_LT(looks, 200);
    const auto found = readable();
    for (const std::uint64_t kept : {0, 3, 4, 5, 6, 7, 8}) EXPECT_THAT(found, ::testing::Contains(kept));
    if (HasFailure()) return;
  }
}

TEST_F(RunRetentionTest, AListingThatFailsRemovesNothing) {
  publish(8);
  FaultStore store(*hub_, {}, 1, [](const StoreCall& call) {
    return call.operation == "list" ? unavailable("no listing") : ok_status();
  });
  EXPECT_EQ(retention(store).plan({}).status().code(), StatusCode::kUnavailable);
}

}  // namespace
}  // namespace flotilla
