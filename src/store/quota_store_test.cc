#include "store/quota_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "store/fault_store.h"

namespace flotilla {
namespace {

using ::testing::HasSubstr;

constexpr std::uint64_t kMiB = 1 << 20;

class QuotaStoreTest : public ::testing::Test {
 protected:
  QuotaStore store(std::uint64_t mib) { return {*inner_, options(mib), clock_}; }
  QuotaOptions options(std::uint64_t mib) {
    return {.prefix = "ada/demo/",
            .bytes_max = mib > 0 ? mib * kMiB + 1024 : 0,  // and a head
            .make_room =
                [this] {
                  ++asked_;
                  return to_remove_.empty() ? ok_status() : inner_->remove(to_remove_);
                },
            .setting = "retention.quota_mib"};
  }
  std::uint64_t used() {
    std::uint64_t bytes = 0;
    const auto objects = list_all(*inner_, "ada/demo/").value();
    for (const ObjectInfo& object : objects) bytes += object.size;
    return bytes;
  }
  static Status put(ObjectStore& store, const std::string& name, std::uint64_t mib = 1) {
    return store.put_if_absent("ada/demo/" + name, Bytes(mib * kMiB)).status();
  }

  ManualClock clock_;
  const std::unique_ptr<ObjectStore> inner_ = make_memory_store();
  std::string to_remove_;
  int asked_ = 0;
};

TEST_F(QuotaStoreTest, RefusesWhatWouldPassTheQuotaAndSaysWhatToDo) {
  auto store = this->store(6);
  for (const char* name : {"a", "b", "c", "d", "e"}) EXPECT_TRUE(put(store, name).ok()) << name;
  EXPECT_TRUE(store.put("ada/demo/head", as_bytes("x")).ok()) << "there is room for replacements";
  const Status refused = put(store, "f");
  EXPECT_EQ(refused.code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(refused.message(), HasSubstr("5.0 of its 6.0 MiB"));
  EXPECT_THAT(refused.message(), HasSubstr("raise retention.quota_mib"));
  EXPECT_EQ(asked_, 1);
  EXPECT_TRUE(store.crowded());
  EXPECT_LE(used(), 6 * kMiB + 1024);
  to_remove_ = "ada/demo/a";
  EXPECT_TRUE(put(store, "f").ok()) << "room was made";
  EXPECT_FALSE(inner_->get("ada/demo/a").ok());
}

TEST_F(QuotaStoreTest, WhatOthersWriteIsCountedAfterAMinute) {
  auto store = this->store(11);
  EXPECT_TRUE(put(store, "a", 6).ok());
  ASSERT_TRUE(put(*inner_, "worker", 3).ok());
  ASSERT_TRUE(inner_->put_if_absent("ada/other/x", Bytes(9 * kMiB)).ok());
  clock_.advance(std::chrono::minutes(2));
  EXPECT_EQ(put(store, "b", 4).code(), StatusCode::kResourceExhausted);
  EXPECT_TRUE(put(store, "b", 1).ok());
  ASSERT_TRUE(store.count().ok());
  EXPECT_TRUE(store.crowded());
  ASSERT_TRUE(inner_->remove("ada/demo/worker").ok());
  ASSERT_TRUE(store.count().ok());
  EXPECT_FALSE(store.crowded());
}

TEST_F(QuotaStoreTest, ACountThatFailsIsNoRoom) {
  FaultStore away(*inner_, {}, 1, [](const StoreCall& call) {
    return call.operation == "list" ? unavailable("no listing") : ok_status();
  });
  QuotaStore store(away, options(6), clock_);
  EXPECT_EQ(put(store, "a").code(), StatusCode::kUnavailable);
  EXPECT_EQ(used(), 0u);
}

TEST_F(QuotaStoreTest, AFullHubIsCleanedUpAndAskedOnceMore) {
  int full = 1;
  FaultStore hub(*inner_, {}, 1, [&](const StoreCall& call) {
    return call.operation == "put_if_absent" && full-- > 0 ? resource_exhausted("the owner's quota") : ok_status();
  });
  QuotaStore store(hub, options(0), clock_);
  EXPECT_TRUE(put(store, "a").ok());
  EXPECT_EQ(asked_, 1);
  full = 2;
  EXPECT_EQ(put(store, "b").code(), StatusCode::kResourceExhausted);
  EXPECT_FALSE(store.crowded());
}

TEST_F(QuotaStoreTest, AReplacementOnAFullHubIsCleanedUpForToo) {
  const ETag first = inner_->put_if_absent("ada/demo/head", as_bytes("1")).value();
  int full = 1;
  FaultStore hub(*inner_, {}, 1, [&](const StoreCall& call) {
    return call.operation == "put_if_match" && full-- > 0 ? resource_exhausted("the owner's quota") : ok_status();
  });
  QuotaStore store(hub, options(0), clock_);
  EXPECT_TRUE(store.put_if_match("ada/demo/head", as_bytes("2"), first).ok());
  EXPECT_EQ(asked_, 1);
  full = 2;
  EXPECT_EQ(store.put_if_match("ada/demo/head", as_bytes("3"), first).status().code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(asked_, 2);
}

TEST_F(QuotaStoreTest, ACrowdedStoreIsCleanedUpThoughNobodyWrites) {
  auto store = this->store(6);
  ASSERT_TRUE(put(*inner_, "a", 3).ok());
  ASSERT_TRUE(put(*inner_, "b", 2).ok());
  ASSERT_TRUE(store.count().ok());
  EXPECT_TRUE(store.crowded()) << "nothing may go";
  EXPECT_EQ(asked_, 1);
  to_remove_ = "ada/demo/a";
  ASSERT_TRUE(store.count().ok());
  EXPECT_FALSE(store.crowded());
  EXPECT_EQ(asked_, 2);
  ASSERT_TRUE(store.count().ok());
  EXPECT_EQ(asked_, 2) << "there is room";
}

TEST_F(QuotaStoreTest, AnObjectThatIsThereTakesNothingMore) {
  auto store = this->store(4);
  ASSERT_TRUE(put(store, "a").ok());
  EXPECT_TRUE(put(store, "b").ok());
  EXPECT_EQ(put(store, "b").code(), StatusCode::kAlreadyExists);
  EXPECT_TRUE(put(store, "c").ok());
  EXPECT_EQ(put(store, "a").code(), StatusCode::kAlreadyExists) << "not refused for want of room";
  EXPECT_EQ(asked_, 0);
  EXPECT_EQ(put(store, "d").code(), StatusCode::kResourceExhausted);
  EXPECT_LE(used(), 4 * kMiB + 1024);
}

}  // namespace
}  // namespace flotilla
