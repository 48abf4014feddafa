// What versions take of the memory on their way to a worker.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <malloc.h>

#include <atomic>
#include <chrono>
#include <thread>

#include <fmt/format.h>

#include "store/fault_store.h"
#include "sync/delta.h"
#include "sync/manifest.h"
#include "sync/publish_for_tests.h"
#include "sync/store_access.h"
#include "sync/subscriber.h"
#include "sync/version_parts.h"

namespace flotilla {
namespace {

using ::testing::HasSubstr;

// Bytes that are allocated.
std::int64_t in_use() {
  const struct mallinfo2 heap = mallinfo2();
  return static_cast<std::int64_t>(heap.uordblks + heap.hblkhd);
}

TEST_F(PublishTest, AVersionOnItsWayTakesNoMoreMemoryThanItMay) {
  const ModelDescription description = one_matrix(1024, 1024);
  // Large deltas, which are applied on the way; and full histories.
  for (const double rate : {0.5, 0.006}) {
    SCOPED_TRACE(rate);
    const auto hub = make_memory_store();
    std::int64_t before = 0, most = 0;
    const auto look = [&] { most = std::max(most, in_use() - before); };
    FaultStore watched(*hub, {}, 1, [&](const StoreCall&) {
      look();
      return ok_status();
    });
    const auto learner = Publisher::open(*hub, layout_, description, test_key(), {100}, null_event_sink()).value();
    std::vector<GridState> states = {random_state(description, random_)};
    for (std::uint64_t i = 1; i < 20; ++i) {
      states.push_back(changed_state(description, states.back(), {.integers = rate}, random_));
    }
    std::size_t held = 0;
    const auto subscriber = [&] {
      return Subscriber::create(watched, layout_, description, test_key()->public_key(), null_event_sink(),
                                {.held = [&](TensorIndex i) {
                                  look();
                                  return states[held].tensors[i];
                                }});
    };
    const auto joins = subscriber(), was_away = subscriber();
    for (std::size_t i = 0; i < states.size(); ++i) {
      ASSERT_TRUE(learner->publish(states[i], i).ok());
      if (i != 8) continue;
      ASSERT_TRUE(was_away->pull().ok());
      was_away->hold();
      held = i;
    }
    for (Subscriber* worker : {joins.get(), was_away.get()}) {
      ASSERT_TRUE(worker->poll().ok());
      before = in_use(), most = 0;
      const auto next = worker->pull();
      ASSERT_TRUE(next.ok()) << next.status().to_string();
      look();
      const Status made = (*next)->weights([&](TensorIndex i, const GridTensor& tensor) {
        look();
        EXPECT_EQ(tensor, states.back().tensors[i]);
      });
      EXPECT_TRUE(made.ok()) << made.to_string();
      EXPECT_LE(most, version_bytes_max(description, 1)) << (*next)->path;
    }
  }
}

TEST_F(PublishTest, WhatIsRememberedOfWhatIsHeldTakesNoMoreMemoryThanItMay) {
  const ModelDescription description = one_matrix(1024, 1024);
  const auto learner = Publisher::open(*store_, layout_, description, test_key(), {100}, null_event_sink()).value();
  GridState state = random_state(description, random_);
  const auto worker = Subscriber::create(*store_, layout_, description, test_key()->public_key(), null_event_sink(),
                                         {.held = [&](TensorIndex i) { return state.tensors[i]; }});
  ASSERT_TRUE(learner->publish(state, 0).ok());
  ASSERT_TRUE(worker->pull().ok());
  worker->hold();
  const std::int64_t before = in_use();
  GridState next = changed_state(description, state, {.integers = 0.2}, random_);
  ASSERT_TRUE(learner->publish(next, 1).ok());
  ASSERT_TRUE(worker->poll().ok());
  const std::int64_t published = in_use() - before;
  ASSERT_TRUE(worker->pull().ok());
  worker->hold();
  EXPECT_LE(in_use() - before - published, history_bytes_max(description) + (16 << 10));
}

TEST_F(PublishTest, ADeltaThatIsTooLargeForThePlanGivesWayToTheAnchorBesideIt) {
  const ModelDescription description = one_matrix(2048, 1024);
  const auto learner = Publisher::open(*store_, layout_, description, test_key(), {100}, null_event_sink()).value();
  GridState state = random_state(description, random_);
  ASSERT_TRUE(learner->publish(state, 0).ok());
  StateHolder worker(*store_, layout_, description);
  ASSERT_TRUE(pull(worker).ok());
  state = changed_state(description, state, {.integers = 0.5}, random_);
  const auto report = learner->publish(state, 1);
  ASSERT_TRUE(report.ok());
  EXPECT_GT(static_cast<std::int64_t>(report->delta_bytes), waiting_bytes_max(description));
  EXPECT_LT(report->delta_bytes, report->anchor_bytes / 4);
  const auto by_anchor = pull(worker);
  ASSERT_TRUE(by_anchor.ok()) << by_anchor.status().to_string();
  EXPECT_EQ(by_anchor->path, "anchor 1");

  // Where there is no other way, it is taken.
  ASSERT_TRUE(store_->remove(layout_.anchor(Version(1))).ok());
  const auto by_delta = worker.fetch(Version(1));
  ASSERT_TRUE(by_delta.ok()) << by_delta.status().to_string();
  EXPECT_EQ(by_delta->path, "anchor 0, delta 1");
  EXPECT_EQ(*by_delta->state, state);
}

TEST_F(PublishTest, AnObjectThatIsTooLargeForTheModelIsNotFetched) {
  ASSERT_TRUE(publisher()->publish(random_state(description_, random_), 0).ok());
  auto manifest =
      manifest_from_json(as_text(store_->get(layout_.manifest(Version(0)))->bytes), test_key()->public_key()).value();
  manifest.anchor->size = 100 * kChunkBytes;
  manifest.anchor->chunks.resize(100);
  ASSERT_TRUE(overwrite(layout_.manifest(Version(0)), manifest_to_json(manifest, *test_key())).ok());
  std::string calls;
  FaultStore counted(*store_, {}, 1, [&](const StoreCall& call) {
    calls += call.key;
    return ok_status();
  });
  const Status refused = subscriber(counted)->fetch(Version(0)).status();
  EXPECT_EQ(refused.code(), StatusCode::kDataLoss);
  EXPECT_THAT(refused.message(), HasSubstr("104857600 bytes; of this model at most"));
  EXPECT_THAT(calls, testing::Not(HasSubstr("anchor")));
}

}  // namespace
}  // namespace flotilla
