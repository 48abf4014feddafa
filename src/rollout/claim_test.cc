#include "rollout/claim.h"

#include <gtest/gtest.h>

#include <set>

#include "base/files.h"
#include "rollout/claim_book.h"
#include "rollout/claim_keeper.h"
#include "rollout/claim_ledger.h"
#include "rollout/epoch_scan.h"
#include "rollout/worker_counter.h"
#include "store/fault_store.h"
#include "telemetry/event_sinks.h"

namespace flotilla {
namespace {

using std::chrono::minutes;
using Time = std::chrono::nanoseconds;

const HubLayout kLayout{"owner/run"};

TEST(TaskOrder, HasEveryTaskOnceInEachEpochAndInAnotherOrder) {
  const TaskOrder order{.seed = 7, .tasks = 1000, .block_tasks = 64};
  EXPECT_EQ(order.blocks(), 16u);
  EXPECT_EQ(order.size(0), 64u);
  EXPECT_EQ(order.size(15), 40u);
  std::vector<std::vector<std::uint64_t>> epochs;
  for (std::uint64_t epoch = 0; epoch < 3; ++epoch) {
    auto& tasks = epochs.emplace_back();
    for (std::uint64_t block = 0; block < order.blocks(); ++block) {
      for (std::uint64_t index = 0; index < order.size(block); ++index) {
        const std::uint64_t counter = order.counter(epoch, block, index);
        EXPECT_EQ(counter, epoch * 1000 + tasks.size());
        EXPECT_EQ(order.epoch_of(counter), epoch);
        EXPECT_EQ(order.block_of(counter), block);
        EXPECT_EQ(order.index_of(counter), index);
        tasks.push_back(order.task(counter));
      }
    }
    EXPECT_EQ(std::set(tasks.begin(), tasks.end()).size(), 1000u);
    EXPECT_LT(*std::ranges::max_element(tasks), 1000u);
  }
  EXPECT_NE(epochs[0], epochs[1]);
  EXPECT_NE(epochs[1], epochs[2]);
}

TEST(TaskOrder, FollowsFromTheSeedForGood) {
  const TaskOrder order{.seed = 1, .tasks = 20'000, .block_tasks = 64};
  EXPECT_EQ(order.task(0), 16964u);
  EXPECT_EQ(order.task(20'000), 9581u);
  EXPECT_EQ(order.first_block(0, WorkerId("worker")), 162u);
  EXPECT_NE((TaskOrder{.seed = 2, .tasks = 20'000, .block_tasks = 64}).task(0), order.task(0));
}

TEST(TaskOrder, OfFewTasksHasOneSmallBlock) {
  const TaskOrder order{.seed = 1, .tasks = 1, .block_tasks = 64};
  EXPECT_EQ(order.blocks(), 1u);
  EXPECT_EQ(order.size(0), 1u);
  EXPECT_EQ(order.task(12), 0u);
  EXPECT_EQ(order.first_block(5, WorkerId("worker")), 0u);
}

TEST(Claim, HasOneKeyALease) {
  const ClaimId id{3, 17, 1};
  EXPECT_EQ(claim_key(kLayout, id), "owner/run/claims/0000000003/0000000017.0000000001");
  EXPECT_EQ(done_key(kLayout, id, WorkerId("w")), claim_key(kLayout, id) + ".w");
  EXPECT_EQ(read_claim_key(kLayout, claim_key(kLayout, id))->id, id);
  EXPECT_EQ(read_claim_key(kLayout, done_key(kLayout, id, WorkerId("w")))->done_by, WorkerId("w"));
  for (const char* junk : {"", "x", "0000000003", "0000000003/", "0000000003/0000000017", "0000000003/0000000017.",
                           "3/17.1", "0000000003/0000000017.0000000001.", "0000000003/0000000017.0000000001x",
                           "0000000003/0000000017.-000000001", "0000000003/0000000017.0000000001.w/x"}) {
    EXPECT_FALSE(read_claim_key(kLayout, kLayout.claims() + junk)) << junk;
  }
  EXPECT_FALSE(read_claim_key(kLayout, "owner/run/head"));
}

TEST(Claim, IsOfWhoSignedIt) {
  const auto key = SigningKey::generate().value();
  const ClaimId id{3, 17, 1};
  const std::string text = claim_to_json("owner/run", id, *key);
  EXPECT_EQ(text, claim_to_json("owner/run", id, *key));
  EXPECT_EQ(claim_holder(text, "owner/run", id).value(), worker_id(key->public_key()));
  EXPECT_FALSE(claim_holder(text, "owner/other", id).ok());
  EXPECT_FALSE(claim_holder(text, "owner/run", {3, 17, 2}).ok());
  EXPECT_FALSE(claim_holder("", "owner/run", id).ok());
  EXPECT_FALSE(claim_holder(std::string(5000, ' '), "owner/run", id).ok());
  for (std::size_t bit = 0; bit < text.size() * 8; ++bit) {
    std::string flipped = text;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << bit % 8));
    EXPECT_FALSE(claim_holder(flipped, "owner/run", id).ok()) << bit;
  }
}

TEST(HeldClaim, IsFoundInAStatusAmongTheFirstOnly) {
  nlohmann::json status = {{"time_ms", 5}, {"claims", nlohmann::json::array()}};
  const auto add = [&](std::uint64_t block) {
    status["claims"].push_back({{"epoch", 1}, {"block", block}, {"lease", 0}, {"done", "00000000000000ff"}});
  };
  for (std::uint64_t block = 0; block < 9; ++block) add(block);
  EXPECT_EQ(find_held_claim(status.dump(), {1, 7, 0})->done, 0xffu);
  EXPECT_EQ(find_held_claim(status.dump(), {1, 7, 0})->sign_of_life, "5");
  EXPECT_FALSE(find_held_claim(status.dump(), {1, 8, 0})) << "more than a worker may hold";
  EXPECT_FALSE(find_held_claim(status.dump(), {1, 7, 1}));
  for (const char* junk : {"", "[]", "{}", R"({"claims":5})", R"({"claims":[5,{"epoch":1}]})",
                           R"({"claims":[{"epoch":1,"block":7,"lease":0,"done":7}]})"}) {
    EXPECT_FALSE(find_held_claim(junk, {1, 7, 0})) << junk;
  }
}

// A hub in memory that is claimed by hand.
class ClaimsTest : public testing::Test {
 protected:
  std::shared_ptr<const SigningKey> key_ = SigningKey::generate().value();
  std::shared_ptr<const SigningKey> other_ = SigningKey::generate().value();
  std::unique_ptr<ObjectStore> hub_ = make_memory_store();
  TaskOrder order_{.seed = 3, .tasks = 640, .block_tasks = 64};

  void claim(const ClaimId& id, const SigningKey& key) {
    ASSERT_TRUE(hub_->put_if_absent(claim_key(kLayout, id), as_bytes(claim_to_json(kLayout.prefix, id, key))).ok());
  }
  std::optional<std::uint64_t> scan(std::uint64_t epoch, std::uint64_t first, std::size_t page_keys) {
    EpochScan scan(kLayout, epoch, order_.blocks(), first);
    while (!scan.take(hub_->list(scan.prefix(), scan.after(), page_keys).value())) {
    }
    return scan.free_block();
  }
  void fill(std::uint64_t epoch) {
    for (std::uint64_t block = 0; block < order_.blocks(); ++block) claim({epoch, block, 0}, *other_);
  }
  std::string why_not(const WorkerId& worker, const ClaimId& id) {
    ClaimLedger ledger(*hub_, kLayout, order_);
    const Status status = ledger.check(worker, order_.counter(id.epoch, id.block, 5));
    EXPECT_TRUE(status.ok() || status.code() == StatusCode::kInvalidArgument) << status.to_string();
    return status.message();
  }
};

TEST_F(ClaimsTest, AScanFindsTheFirstFreeBlockFromAnyOn) {
  EXPECT_EQ(scan(0, 4, 1000), 4u);
  std::set<std::uint64_t> claimed;
  PhiloxStream random(1, 0);
  while (claimed.size() < 10) {
    for (std::uint64_t first = 0; first < 10; ++first) {
      std::uint64_t expected = first;
      while (claimed.contains(expected)) expected = (expected + 1) % 10;
      for (const std::size_t keys : {1, 2, 3, 1000}) EXPECT_EQ(scan(0, first, keys), expected);
    }
    const std::uint64_t block = random.below(10);
    if (!claimed.insert(block).second) continue;
    claim({0, block, 0}, *key_);
    // What does not count: later leases, marks, other epochs, strangers' keys.
    claim({0, block, 1}, *other_);
    ASSERT_TRUE(hub_->put(done_key(kLayout, {0, block, 0}, WorkerId("w")), {}).ok());
    ASSERT_TRUE(hub_->put(kLayout.claims(0) + "junk" + std::to_string(block), {}).ok());
    ASSERT_TRUE(hub_->put(kLayout.claims(0) + padded(10 + block) + "." + padded(0), {}).ok());
  }
  for (const std::size_t keys : {1, 2, 3, 1000}) {
    for (std::uint64_t first = 0; first < 10; ++first) EXPECT_FALSE(scan(0, first, keys));
  }
}

TEST_F(ClaimsTest, OnlyAHolderMayDoABlock) {
  const WorkerId me = worker_id(key_->public_key()), other = worker_id(other_->public_key());
  const std::uint64_t mine = order_.first_block(0, me);
  EXPECT_NE(why_not(me, {0, mine, 0}).find("not claimed"), std::string::npos);
  claim({0, mine, 0}, *key_);
  EXPECT_EQ(why_not(me, {0, mine, 0}), "");
  EXPECT_NE(why_not(other, {0, mine, 0}).find("not claimed"), std::string::npos);
  claim({0, mine, 1}, *other_);
  EXPECT_EQ(why_not(other, {0, mine, 0}), "") << "the lease has changed hands";
  EXPECT_EQ(why_not(me, {0, mine, 0}), "");
  // A claim in another's name, and one that was copied to another block.
  const std::uint64_t next = (mine + 1) % 10;
  ASSERT_TRUE(hub_->put(claim_key(kLayout, {0, next, 0}), hub_->get(claim_key(kLayout, {0, mine, 0}))->bytes).ok());
  EXPECT_NE(why_not(me, {0, next, 0}).find("not claimed"), std::string::npos);
}

TEST_F(ClaimsTest, NobodyChoosesABlock) {
  const WorkerId me = worker_id(key_->public_key());
  const std::uint64_t first = order_.first_block(0, me);
  const auto block = [&](std::uint64_t distance) { return (first + distance) % 10; };
  claim({0, block(3), 0}, *key_);
  EXPECT_NE(why_not(me, {0, block(3), 0}).find("which comes before it"), std::string::npos);
  for (const std::uint64_t distance : {0, 1, 2}) claim({0, block(distance), 0}, *other_);
  EXPECT_EQ(why_not(me, {0, block(3), 0}), "") << "it was the first free one";
}

TEST_F(ClaimsTest, NobodyChoosesAnEpoch) {
  const WorkerId me = worker_id(key_->public_key());
  for (const std::uint64_t epoch : {3, 4}) fill(epoch);  // the earlier ones were removed
  for (const std::uint64_t epoch : {5, 7}) claim({epoch, order_.first_block(epoch, me), 0}, *key_);
  EXPECT_EQ(why_not(me, {5, order_.first_block(5, me), 0}), "");
  EXPECT_NE(why_not(me, {7, order_.first_block(7, me), 0}).find("was begun while"), std::string::npos);
  for (std::uint64_t b = 0; b < 10; ++b) {
    if (b != order_.first_block(5, me)) claim({5, b, 0}, *other_);
  }
  fill(6);
  EXPECT_EQ(why_not(me, {7, order_.first_block(7, me), 0}), "");
}

TEST_F(ClaimsTest, AClaimOfARemovedEpochStandsInNobodysWay) {
  const WorkerId me = worker_id(key_->public_key());
  for (const char* junk : {"0000000000/0000000000.0000000000", "0000000001/0000000000.0000000000", "-/x"}) {
    ASSERT_TRUE(hub_->put(kLayout.claims() + junk, {}).ok());
  }
  claim({0, order_.first_block(0, me), 0}, *key_);
  for (const std::uint64_t epoch : {4, 5, 6}) {
    claim({epoch, order_.first_block(epoch, me), 0}, *key_);
  }
  for (const std::uint64_t epoch : {4, 5}) {
    for (std::uint64_t block = 0; block < 10; ++block) {
      if (block != order_.first_block(epoch, me)) claim({epoch, block, 0}, *other_);
    }
  }
  // The last three, in any order, each to a learner that has just begun.
  for (const std::uint64_t epoch : {0, 4, 5, 6}) {
    EXPECT_EQ(why_not(me, {epoch, order_.first_block(epoch, me), 0}), "") << epoch;
  }
  ClaimLedger ledger(*hub_, kLayout, order_);
  for (const std::uint64_t epoch : {6, 5, 4}) {
    EXPECT_TRUE(ledger.check(me, order_.counter(epoch, order_.first_block(epoch, me), 0)).ok()) << epoch;
  }
}

TEST_F(ClaimsTest, AnEpochThatMayBeBegunDoesNotOpenThoseBelow) {
  const WorkerId me = worker_id(key_->public_key());
  for (const std::uint64_t epoch : {20, 21}) fill(epoch);
  for (const std::uint64_t epoch : {15, 22}) claim({epoch, order_.first_block(epoch, me), 0}, *key_);
  ClaimLedger ledger(*hub_, kLayout, order_);
  const auto check = [&](std::uint64_t epoch) {
    return ledger.check(me, order_.counter(epoch, order_.first_block(epoch, me), 0)).code();
  };
  EXPECT_EQ(check(22), StatusCode::kOk) << "two epochs as a whole are the price";
  EXPECT_EQ(check(15), StatusCode::kInvalidArgument);
}

TEST_F(ClaimsTest, AClaimThatIsTooLongIsNobodys) {
  const WorkerId me = worker_id(key_->public_key());
  const ClaimId mine{0, order_.first_block(0, me), 0};
  ASSERT_TRUE(hub_->put(claim_key(kLayout, mine), Bytes(1 << 20)).ok());
  EXPECT_NE(why_not(me, mine).find("not claimed"), std::string::npos);
  claim({0, mine.block, 1}, *key_);
  EXPECT_EQ(why_not(me, mine), "");
}

TEST_F(ClaimsTest, AnEpochThatIsHalfRemovedStandsInNobodysWay) {
  const WorkerId me = worker_id(key_->public_key());
  for (const std::uint64_t epoch : {3, 4, 5}) fill(epoch);
  claim({6, order_.first_block(6, me), 0}, *key_);
  const WorkerId other = worker_id(other_->public_key());
  for (std::uint64_t block = 0; block < 5; ++block) {
    ASSERT_TRUE(hub_->remove(claim_key(kLayout, {3, block, 0})).ok());
  }
  EXPECT_EQ(why_not(me, {6, order_.first_block(6, me), 0}), "");
  for (const std::uint64_t epoch : {4, 5}) {
    EXPECT_EQ(why_not(other, {epoch, order_.first_block(epoch, other), 0}), "") << epoch;
  }
  const ClaimId again{3, scan(3, order_.first_block(3, me), 1000).value(), 0};
  claim(again, *key_);
  EXPECT_EQ(why_not(me, again), "") << "a newcomer begins at what is left";
  ASSERT_TRUE(hub_->remove(claim_key(kLayout, {5, 3, 0})).ok());
  EXPECT_NE(why_not(me, {6, order_.first_block(6, me), 0}).find("was begun while"), std::string::npos);
}

TEST_F(ClaimsTest, ALedgerAsksAboutOnceABlock) {
  const WorkerId me = worker_id(key_->public_key());
  const std::uint64_t mine = order_.first_block(0, me);
  claim({0, mine, 0}, *key_);
  FaultStore hub(*hub_, {}, 1);
  ClaimLedger ledger(hub, kLayout, order_);
  for (std::uint64_t index = 0; index < 64; ++index) EXPECT_TRUE(ledger.check(me, order_.counter(0, mine, index)).ok());
  EXPECT_LE(hub.operations(), 4u);
}

TEST_F(ClaimsTest, ALedgerGivesNoVerdictWhileTheHubIsAway) {
  const WorkerId me = worker_id(key_->public_key());
  claim({0, order_.first_block(0, me), 0}, *key_);
  FaultStore hub(*hub_, {.error = 0.5}, 1);
  ClaimLedger ledger(hub, kLayout, order_);
  Status status = unavailable("not asked yet");
  for (int i = 0; i < 100 && !status.ok(); ++i) {
    EXPECT_EQ(status.code(), StatusCode::kUnavailable);
    status = ledger.check(me, order_.counter(0, order_.first_block(0, me), 0));
  }
  EXPECT_TRUE(status.ok());
}

// A worker's book on the hub in memory, by a clock that is moved by hand.
class ClaimBookTest : public ClaimsTest {
 protected:
  struct Life {
    std::unique_ptr<ClaimBook> book;
    std::int64_t requests = 0;
  };
  Life life(const std::shared_ptr<const SigningKey>& key) {
    return {std::make_unique<ClaimBook>(ClaimBook::Options{
        .layout = kLayout,
        .worker = worker_id(key->public_key()),
        .order = order_,
        .lease = minutes(15),
        .seed = 1,
        .write = [key](const ClaimId& id) { return claim_to_json(kLayout.prefix, id, *key); },
        .read = [](const ClaimId& id, std::string_view text) -> std::optional<WorkerId> {
          const auto holder = claim_holder(text, kLayout.prefix, id);
          return holder.ok() ? std::optional(*holder) : std::nullopt;
        },
        .group_key = [](std::uint64_t counter,
                        Version version) { return kLayout.rollouts() + padded(version) + "/w/" + padded(counter); }})};
  }
  // Everything that it asks for.
  void serve(Life& life, std::int64_t wanted) {
    while (const auto call = life.book->next_call(wanted, now_)) {
      ++life.requests;
      ClaimAnswer answer;
      switch (call->kind) {
        case ClaimCall::Kind::kList: answer.page = hub_->list(call->key, call->after, call->limit).value(); break;
        case ClaimCall::Kind::kGet: {
          const auto object = hub_->get(call->key);
          answer.code = object.status().code();
          if (object.ok()) answer.bytes = as_text(object->bytes);
          break;
        }
        case ClaimCall::Kind::kExists: answer.code = hub_->head(call->key).status().code(); break;
        case ClaimCall::Kind::kCreate:
          answer.code = hub_->put_if_absent(call->key, as_bytes(call->bytes)).status().code();
          break;
      }
      life.book->answer(answer, now_);
    }
  }
  std::vector<std::uint64_t> take(Life& life, std::int64_t count) {
    serve(life, count);
    return life.book->take(count, now_);
  }
  void tell(Life& life, const SigningKey& key) {
    const nlohmann::json status = {{"claims", life.book->held()}, {"time_ms", now_.count()}};
    ASSERT_TRUE(hub_->put(kLayout.worker_status(worker_id(key.public_key())), as_bytes(status.dump())).ok());
  }
  void deliver(Life& life, std::uint64_t counter) {
    life.book->made(counter, Version(2));
    life.book->uploaded(counter);
  }

  Time now_ = minutes(1000);
};

TEST_F(ClaimBookTest, GoesThroughBlockAfterBlockAndEpochAfterEpoch) {
  order_.tasks = 150;
  Life worker = life(key_);
  std::vector<std::uint64_t> tasks;
  while (tasks.size() < 450) {
    for (const std::uint64_t counter : take(worker, 10)) {
      EXPECT_EQ(order_.epoch_of(counter), tasks.size() / 150);
      tasks.push_back(order_.task(counter));
      deliver(worker, counter);
    }
  }
  for (int epoch = 0; epoch < 3; ++epoch) {
    EXPECT_EQ(std::set(tasks.begin() + 150 * epoch, tasks.begin() + 150 * (epoch + 1)).size(), 150u);
  }
  EXPECT_LE(worker.requests, 9 * 6);
}

TEST_F(ClaimBookTest, HoldsAFewUnfinishedBlocksAtMost) {
  order_.tasks = 3;
  Life worker = life(key_);
  std::vector<std::uint64_t> counters = take(worker, 100);
  EXPECT_EQ(counters.size(), 3 * kHeldBlocksMax);
  EXPECT_TRUE(take(worker, 100).empty());
  for (std::size_t i = 0; i < 3; ++i) deliver(worker, counters[i]);
  EXPECT_EQ(take(worker, 100).size(), 3u);
}

TEST_F(ClaimBookTest, ANewcomerFindsThePresentEpochAmongMany) {
  order_.tasks = 64;
  for (std::uint64_t epoch = 40; epoch < 300; ++epoch) claim({epoch, 0, 0}, *other_);
  Life worker = life(key_);
  EXPECT_EQ(order_.epoch_of(take(worker, 1).at(0)), 300u);
  EXPECT_LE(worker.requests, 40);
}

TEST_F(ClaimBookTest, TakesOverWhatADeadWorkerHasNotDone) {
  order_.tasks = 64;
  Life dead = life(other_);
  const auto counters = take(dead, 64);
  for (std::size_t i = 0; i < 40; ++i) deliver(dead, counters[i]);
  tell(dead, *other_);
  Life worker = life(key_);
  EXPECT_EQ(order_.epoch_of(take(worker, 64).at(0)), 1u) << "the dead one may be slow";
  now_ += minutes(16);
  const auto taken = take(worker, 24);
  EXPECT_EQ(taken, std::vector(counters.begin() + 40, counters.end()));
  EXPECT_EQ(worker.book->take_news(), (ClaimId{0, 0, 1}));
}

TEST_F(ClaimBookTest, LeavesTheLivingAlone) {
  order_.tasks = 64;
  Life slow = life(other_);
  (void)take(slow, 64);
  Life worker = life(key_);
  for (std::uint64_t epoch = 1; epoch < 20; ++epoch) {
    now_ += minutes(16);
    tell(slow, *other_);
    const auto counters = take(worker, 64);
    ASSERT_EQ(counters.size(), 64u);
    EXPECT_EQ(order_.epoch_of(counters[0]), epoch);
    for (const std::uint64_t counter : counters) deliver(worker, counter);
  }
}

TEST_F(ClaimBookTest, GivesUpWhatOthersHaveTakenOver) {
  order_.tasks = 64;
  Life slow = life(key_);
  const auto first = take(slow, 10);
  claim({0, 0, 1}, *other_);
  now_ += minutes(14);
  EXPECT_EQ(order_.epoch_of(take(slow, 10).at(0)), 1u);
  for (const std::uint64_t counter : first) deliver(slow, counter);
  serve(slow, 1);
  EXPECT_EQ(slow.book->held().size(), 1u);
  EXPECT_FALSE(hub_->head(done_key(kLayout, {0, 0, 0}, worker_id(key_->public_key()))).ok()) << "it is not done";
}

TEST_F(ClaimBookTest, WhatIsNoClaimTakesABlockFromNobody) {
  order_.tasks = 64;
  Life slow = life(key_);
  auto taken = take(slow, 10);
  for (const std::uint64_t lease : {1, 2}) {
    ASSERT_TRUE(hub_->put(claim_key(kLayout, {0, 0, lease}), as_bytes("junk")).ok());
  }
  now_ += minutes(14);
  for (const std::uint64_t counter : take(slow, 10)) taken.push_back(counter);
  EXPECT_EQ(order_.epoch_of(taken.back()), 0u) << "it holds it still";
  Life other = life(other_);
  for (int look = 0; look < 3; ++look) {
    tell(slow, *key_);
    for (const std::uint64_t counter : take(other, 64)) {
      EXPECT_NE(order_.epoch_of(counter), 0u) << "its holder lives";
      deliver(other, counter);
    }
    now_ += minutes(16);
  }
  // It dies.
  std::vector<std::uint64_t> heirs;
  for (int look = 0; look < 3 && heirs.empty(); ++look) {
    for (const std::uint64_t counter : take(other, 64)) {
      if (order_.epoch_of(counter) == 0) heirs.push_back(counter);
      deliver(other, counter);
    }
    now_ += minutes(16);
  }
  EXPECT_FALSE(heirs.empty());
  EXPECT_TRUE(hub_->head(claim_key(kLayout, {0, 0, 3})).ok());
  // And was asleep only: the lease after the junk is another one's.
  EXPECT_NE(order_.epoch_of(take(slow, 1).at(0)), 0u);
  for (const std::uint64_t counter : taken) deliver(slow, counter);
  serve(slow, 1);
  for (const auto& held : slow.book->held()) EXPECT_NE(held["epoch"], 0u) << "it has lost it";
}

TEST_F(ClaimBookTest, NobodyTakesALeaseThatDoesNotCount) {
  order_.tasks = 64;
  for (std::uint64_t lease = 0; lease + 1 < kLeasesMax; ++lease) claim({0, 0, lease}, *other_);
  ASSERT_TRUE(hub_->put(claim_key(kLayout, {0, 0, kLeasesMax - 1}), {}).ok());
  Life worker = life(key_);
  for (int look = 0; look < 3; ++look) {
    for (const std::uint64_t counter : take(worker, 64)) {
      EXPECT_NE(order_.epoch_of(counter), 0u);
      deliver(worker, counter);
    }
    now_ += minutes(16);
  }
  EXPECT_FALSE(hub_->head(claim_key(kLayout, {0, 0, kLeasesMax})).ok());
}

TEST_F(ClaimBookTest, GoesOnInItsNextLifeWithWhatIsNotOnTheHub) {
  order_.tasks = 64;
  Life first = life(key_);
  const auto counters = take(first, 20);
  for (std::size_t i = 0; i < 5; ++i) deliver(first, counters[i]);
  for (std::size_t i = 5; i < 10; ++i) first.book->made(counters[i], Version(2));
  // Of those that were made, one came to the hub without an answer.
  ASSERT_TRUE(hub_->put(kLayout.rollouts() + padded(Version(2)) + "/w/" + padded(counters[7]), {}).ok());
  Life second = life(key_);
  ASSERT_TRUE(second.book->restore(first.book->save()).ok());
  EXPECT_EQ(second.book->available(now_), 0) << "it may have lost the block";
  const auto rest = take(second, 58);
  EXPECT_EQ(rest.size(), 58u);
  for (const std::size_t done : {0, 1, 2, 3, 4, 7}) EXPECT_EQ(std::ranges::count(rest, counters[done]), 0) << done;
  for (const std::uint64_t counter : rest) EXPECT_EQ(order_.epoch_of(counter), 0u);
}

TEST_F(ClaimBookTest, KnowsItsOwnClaimWhenTheAnswerWasLost) {
  Life worker = life(key_);
  const std::uint64_t mine = order_.first_block(0, worker_id(key_->public_key()));
  while (worker.book->next_call(1, now_)->kind != ClaimCall::Kind::kCreate) {
    const auto call = worker.book->next_call(1, now_);
    worker.book->answer({.page = hub_->list(call->key, call->after, call->limit).value()}, now_);
  }
  claim({0, mine, 0}, *key_);  // what was asked for has happened
  EXPECT_EQ(take(worker, 1), std::vector{order_.counter(0, mine, 0)});
}

TEST_F(ClaimBookTest, ReadsNoFileThatItDidNotWrite) {
  Life worker = life(key_);
  (void)take(worker, 3);
  const std::string good = worker.book->save();
  EXPECT_TRUE(life(key_).book->restore(good).ok());
  EXPECT_EQ(life(other_).book->restore(good).code(), StatusCode::kDataLoss);
  for (std::size_t size = 0; size + 1 < good.size(); ++size) {
    EXPECT_EQ(life(key_).book->restore(good.substr(0, size)).code(), StatusCode::kDataLoss);
  }
  const auto with = [&](const char* name, const nlohmann::json& value) {
    auto state = nlohmann::json::parse(good);
    state["blocks"][0][name] = value;
    return life(key_).book->restore(state.dump()).code();
  };
  EXPECT_EQ(with("block", 10), StatusCode::kDataLoss);
  EXPECT_EQ(with("epoch", -1), StatusCode::kDataLoss);
  EXPECT_EQ(with("all", "ff"), StatusCode::kDataLoss);
  EXPECT_EQ(with("made", {{64, 1}}), StatusCode::kDataLoss);
  EXPECT_EQ(with("made", {{1}}), StatusCode::kDataLoss);
}

class ClaimKeeperTest : public ClaimsTest {
 protected:
  std::unique_ptr<ClaimKeeper> open(ObjectStore& store) {
    return ClaimKeeper::open(store,
                             {.layout = kLayout,
                              .key = key_,
                              .order = order_,
                              .lease = minutes(15),
                              .file = folder_.path() / "claims.json",
                              .group_key = [](std::uint64_t, Version) { return kLayout.rollouts() + "x"; },
                              .retry = {}},
                             events_, system_clock())
        .value();
  }
  TemporaryFolder folder_;
  MemorySink events_;
};

TEST_F(ClaimKeeperTest, AStoreThatCancelsEndsItAloud) {
  FaultStore hub(*hub_, {}, 1, [](const StoreCall&) { return cancelled("by the store"); });
  const auto keeper = open(hub);
  EXPECT_FALSE(keeper->wait_for(1, minutes(1), {}));
  EXPECT_EQ(keeper->status().code(), StatusCode::kCancelled);
}

TEST_F(ClaimKeeperTest, WhatIsTooLongSaysNothing) {
  order_.tasks = 64;
  ASSERT_TRUE(hub_->put(claim_key(kLayout, {0, 0, 0}), Bytes(1 << 20)).ok());
  FaultStore hub(*hub_, {}, 1, [](const StoreCall& call) {
    return call.operation == "get" ? internal_error("reads all of it") : ok_status();
  });
  const auto keeper = open(hub);
  EXPECT_TRUE(keeper->wait_for(1, minutes(1), {})) << keeper->status().to_string();
  EXPECT_EQ(order_.epoch_of(keeper->take(1).at(0)), 1u);
}

}  // namespace
}  // namespace flotilla
