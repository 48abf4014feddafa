// Publisher and subscriber over one hub, without faults and with single ones. hub_simulation_test.cc has the rest.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <set>
#include <thread>

#include <fmt/format.h>

#include "store/fault_store.h"
#include "sync/delta.h"
#include "sync/delta_codec1_for_tests.h"
#include "sync/manifest.h"
#include "sync/publish_for_tests.h"
#include "sync/publisher.h"
#include "sync/state_holder_for_tests.h"
#include "sync/store_access.h"
#include "sync/subscriber.h"
#include "sync/tensors_for_tests.h"
#include "sync/test_model.h"
#include "sync/version_parts.h"

namespace flotilla {
namespace {

using ::testing::HasSubstr;

struct Events final : EventSink {
  void emit(Event event) override { kinds.push_back(event.kind); }
  std::vector<std::string> kinds;
};

TEST_F(PublishTest, TheFirstVersionIsAnAnchorAndTheNextADelta) {
  const auto learner = publisher();
  EXPECT_EQ(learner->head(), std::nullopt);
  const GridState zero = random_state(description_, random_);
  const auto first = learner->publish(zero, 0);
  ASSERT_TRUE(first.ok()) << first.status().to_string();
  EXPECT_EQ(first->version, Version(0));
  EXPECT_EQ(first->state, state_digest(description_, zero));
  EXPECT_GT(first->anchor_bytes, 0u);
  EXPECT_EQ(first->delta_bytes, 0u);

  const GridState one = next(zero);
  const auto second = learner->publish(one, 5);
  ASSERT_TRUE(second.ok()) << second.status().to_string();
  EXPECT_EQ(second->version, Version(1));
  EXPECT_EQ(second->anchor_bytes, 0u);
  EXPECT_GT(second->delta_bytes, 0u);
  EXPECT_GT(second->changed, 0);
  EXPECT_EQ(second->total, description_.tensors[0].size() + 150 + 5 * 64 + 1 + 3);
  EXPECT_EQ(learner->head()->version, Version(1));

  const auto manifest =
      manifest_from_json(as_text(store_->get(layout_.manifest(Version(1)))->bytes), test_key()->public_key());
  ASSERT_TRUE(manifest.ok()) << manifest.status().to_string();
  EXPECT_EQ(manifest->optimizer_step, 5u);
  EXPECT_EQ(manifest->delta->base, Version(0));
  EXPECT_EQ(manifest->state, second->state);
  EXPECT_FALSE(manifest->anchor);
}

TEST_F(PublishTest, ASubscriberFollowsByDeltas) {
  const auto learner = publisher();
  const auto worker = subscriber();
  EXPECT_EQ(worker->poll().status().code(), StatusCode::kNotFound);
  GridState state = random_state(description_, random_);
  ASSERT_TRUE(learner->publish(state, 0).ok());
  auto pulled = pull(*worker);
  ASSERT_TRUE(pulled.ok()) << pulled.status().to_string();
  EXPECT_EQ(*pulled->state, state);
  EXPECT_EQ(pulled->path, "anchor 0");

  state = next(state);
  ASSERT_TRUE(learner->publish(state, 1).ok());
  state = next(state);
  const auto report = learner->publish(state, 2);
  ASSERT_TRUE(report.ok());
  pulled = pull(*worker);
  ASSERT_TRUE(pulled.ok()) << pulled.status().to_string();
  EXPECT_EQ(*pulled->state, state);
  EXPECT_EQ(pulled->version, Version(2));
  EXPECT_EQ(pulled->state_digest, report->state);
  EXPECT_EQ(pulled->path, "delta 1, delta 2");
  EXPECT_EQ(worker->held()->version, Version(2));
}

TEST_F(PublishTest, PullingAgainFetchesNothing) {
  ASSERT_TRUE(publisher()->publish(random_state(description_, random_), 0).ok());
  std::string calls;
  FaultStore counted(*store_, {}, 1, [&](const StoreCall& call) {
    calls += call.key;
    return ok_status();
  });
  const auto worker = subscriber(counted);
  const auto first = pull(*worker);
  ASSERT_TRUE(first.ok());
  ASSERT_TRUE(worker->poll().ok());
  calls.clear();
  const auto second = worker->pull();
  ASSERT_TRUE(second.ok());
  EXPECT_EQ(second->state, first->state);
  EXPECT_EQ(calls, "");
}

TEST_F(PublishTest, ALateWorkerTakesTheNewestAnchorAndTheDeltasAfterIt) {
  const auto learner = publisher(4);
  GridState state = random_state(description_, random_);
  std::vector<GridState> states;
  for (int i = 0; i < 11; ++i) {
    ASSERT_TRUE(learner->publish(state, i).ok());
    states.push_back(state);
    state = next(state);
  }
  const auto worker = subscriber();
  const auto pulled = pull(*worker);
  ASSERT_TRUE(pulled.ok());
  EXPECT_EQ(pulled->path, "anchor 8, delta 9, delta 10");
  for (int i = 0; i < 11; ++i) {
    const auto fetched = worker->fetch(Version(i));
    ASSERT_TRUE(fetched.ok()) << fetched.status().to_string();
    EXPECT_EQ(*fetched->state, states[i]) << i << " by " << fetched->path;
  }
  EXPECT_EQ(worker->held()->version, Version(10));
  EXPECT_EQ(worker->fetch(Version(11)).status().code(), StatusCode::kNotFound);
}

TEST_F(PublishTest, AChainOfBothCodecsIsFollowedFromItsBeginAndFromWithin) {
  std::vector<GridState> states = {random_state(description_, random_)};
  const auto learner = publisher();
  ASSERT_TRUE(learner->publish(states[0], 0).ok());
  states.push_back(next(states[0]));
  ASSERT_TRUE(learner->publish(states[1], 1).ok());
  const auto worker = subscriber();
  ASSERT_TRUE(pull(*worker).ok());

  Manifest manifest;
  const auto put_version = [&](const Bytes& delta, int codec, std::optional<Sha256Digest> history) {
    const Version version(states.size() - 1), base(states.size() - 2);
    manifest.run = layout_.prefix;
    manifest.version = version;
    manifest.generation = Generation(1);
    manifest.state = state_digest(description_, states.back());
    manifest.history = history;
    manifest.delta =
        DeltaObject{describe_object(delta), codec, base, state_digest(description_, states[states.size() - 2])};
    ASSERT_TRUE(store_->put(layout_.delta(version), delta).ok());
    ASSERT_TRUE(overwrite(layout_.manifest(version), manifest_to_json(manifest, *test_key())).ok());
  };
  // An older learner: one integer, a step up.
  states.push_back(states[1]);
  std::int8_t& integer = states[2].tensors[0].q[0];
  integer = static_cast<std::int8_t>(integer == kMatrixLimit ? integer - 1 : integer + 1);
  DeltaStreams streams;
  streams[kCounts] = Bytes(2 * description_.tensors.size(), 0);
  streams[kCounts][0] = 1;
  streams[kGaps] = {0};
  streams[kSteps] = {static_cast<std::uint8_t>(integer > states[1].tensors[0].q[0] ? 1 : 0)};
  put_version(write_codec1_frame(streams), 1, std::nullopt);
  // And one that knows nothing of what was before.
  states.push_back(next(states[2]));
  const auto delta = encode_delta(description_, states[2], no_history(description_), states[3]).value();
  put_version(delta.bytes, kDeltaCodec, history_digest(delta.history));

  for (std::uint64_t i = 0; i < states.size(); ++i) {
    const auto fetched = subscriber()->fetch(Version(i));
    ASSERT_TRUE(fetched.ok()) << fetched.status().to_string();
    EXPECT_EQ(*fetched->state, states[i]) << i;
  }
  Head head = *learner->head();
  ++head.sequence;
  head.version = Version(3);
  head.manifest = sha256(manifest_to_json(manifest, *test_key()));
  ASSERT_TRUE(overwrite(layout_.head(), head_to_json(head, *test_key())).ok());
  const auto pulled = pull(*worker);
  ASSERT_TRUE(pulled.ok()) << pulled.status().to_string();
  EXPECT_EQ(pulled->path, "delta 2, delta 3");
  EXPECT_EQ(*pulled->state, states[3]);
}

TEST_F(PublishTest, ALongWayOfDeltasGivesWayToAnAnchor) {
  const auto learner = publisher(8);
  GridState state = random_state(description_, random_);
  ASSERT_TRUE(learner->publish(state, 0).ok());
  const auto worker = subscriber();
  ASSERT_TRUE(pull(*worker).ok());
  // Every second integer changes: eight deltas cost more than an anchor.
  for (int i = 1; i < 9; ++i) {
    state = changed_state(description_, state, {.integers = 0.5, .vectors = 0.5}, random_);
    ASSERT_TRUE(learner->publish(state, i).ok());
  }
  remove_skip(8, 0);
  const auto pulled = pull(*worker);
  ASSERT_TRUE(pulled.ok());
  EXPECT_EQ(pulled->path, "anchor 8");
  EXPECT_EQ(*pulled->state, state);
}

TEST_F(PublishTest, ANewLearnerContinuesWithAnAnchorAtTheNextNumber) {
  GridState state = random_state(description_, random_);
  const auto worker = subscriber();
  {
    const auto learner = publisher();
    ASSERT_TRUE(learner->publish(state, 0).ok());
    ASSERT_TRUE(learner->publish(next(state), 1).ok());
  }
  ASSERT_TRUE(pull(*worker).ok());
  const auto learner = publisher();
  EXPECT_EQ(learner->head()->generation, Generation(2));
  EXPECT_EQ(learner->head()->version, Version(1));
  state = next(state);  // from a checkpoint before version 1
  const auto report = learner->publish(state, 1);
  ASSERT_TRUE(report.ok());
  EXPECT_EQ(report->version, Version(2));
  EXPECT_GT(report->anchor_bytes, 0u);
  EXPECT_EQ(report->delta_bytes, 0u);
  const auto pulled = pull(*worker);
  ASSERT_TRUE(pulled.ok()) << pulled.status().to_string();
  EXPECT_EQ(*pulled->state, state);
}

TEST_F(PublishTest, AnOlderLearnerIsFenced) {
  const auto old = publisher();
  const GridState state = random_state(description_, random_);
  ASSERT_TRUE(old->publish(state, 0).ok());
  const auto learner = publisher();
  const auto refused = old->publish(next(state), 1);
  EXPECT_EQ(refused.status().code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(refused.status().message(), HasSubstr("must stop"));
  EXPECT_EQ(old->update_head(RunState::kPaused, 3).code(), StatusCode::kFailedPrecondition);
  EXPECT_TRUE(learner->publish(next(state), 1).ok());
}

TEST_F(PublishTest, OfTwoLearnersThatBeginARunOneIsRefused) {
  const auto a = publisher();
  const auto b = publisher();
  const GridState state = random_state(description_, random_);
  ASSERT_TRUE(a->publish(state, 0).ok());
  EXPECT_EQ(b->publish(next(state), 0).status().code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(b->publish(state, 0).status().code(), StatusCode::kFailedPrecondition);
  EXPECT_TRUE(a->publish(next(state), 1).ok());
  EXPECT_EQ(*pull(*subscriber())->state, *subscriber()->fetch(a->head()->version)->state);
}

TEST_F(PublishTest, HeadCarriesStateAndWish) {
  const auto learner = publisher();
  ASSERT_TRUE(learner->update_head(RunState::kPaused, 7).ok());  // kept for the first head
  EXPECT_EQ(learner->head(), std::nullopt);
  ASSERT_TRUE(learner->publish(random_state(description_, random_), 0).ok());
  const auto worker = subscriber();
  EXPECT_EQ(worker->poll()->state, RunState::kPaused);
  EXPECT_EQ(worker->poll()->wanted, 7);
  ASSERT_TRUE(learner->update_head(RunState::kFinished, 0).ok());
  EXPECT_EQ(worker->poll()->state, RunState::kFinished);
  EXPECT_EQ(worker->poll()->wanted, 0);
  const std::uint64_t sequence = learner->head()->sequence;
  ASSERT_TRUE(learner->update_head(RunState::kFinished, 0).ok());
  EXPECT_EQ(learner->head()->sequence, sequence);
  EXPECT_EQ(learner->update_head(RunState::kRunning, -1).code(), StatusCode::kInvalidArgument);
}

TEST_F(PublishTest, AnOlderHeadIsIgnored) {
  const auto learner = publisher();
  const GridState state = random_state(description_, random_);
  ASSERT_TRUE(learner->publish(state, 0).ok());
  const Bytes old = store_->get(layout_.head())->bytes;
  ASSERT_TRUE(learner->publish(next(state), 1).ok());
  const auto worker = subscriber();
  ASSERT_EQ(worker->poll()->version, Version(1));
  ASSERT_TRUE(store_->put(layout_.head(), old).ok());
  const auto head = worker->poll();
  ASSERT_TRUE(head.ok()) << head.status().to_string();
  EXPECT_EQ(head->version, Version(1));
  EXPECT_EQ(pull(*worker)->version, Version(1));
}

TEST_F(PublishTest, AForkedHeadStopsTheSubscriber) {
  const auto learner = publisher();
  ASSERT_TRUE(learner->publish(random_state(description_, random_), 0).ok());
  const Head good = *learner->head();
  const auto check = [&](const char* what, auto change) {
    const auto worker = subscriber();
    ASSERT_TRUE(store_->put(layout_.head(), as_bytes(head_to_json(good, *test_key()))).ok());
    ASSERT_TRUE(worker->poll().ok());
    Head forked = good;
    ++forked.sequence;
    change(forked);
    ASSERT_TRUE(store_->put(layout_.head(), as_bytes(head_to_json(forked, *test_key()))).ok());
    const auto head = worker->poll();
    EXPECT_EQ(head.status().code(), StatusCode::kFailedPrecondition) << what;
    EXPECT_THAT(head.status().message(), HasSubstr("two learners")) << what;
  };
  check("another writer of this generation", [](Head& head) { head.writer = "00000000000000ff"; });
  check("another manifest of this version", [](Head& head) { head.manifest.bytes[0] ^= 1; });
  check("the same sequence", [](Head& head) { --head.sequence, head.wanted = 5; });
  const auto worker = subscriber();
  Head newer = good;
  newer.sequence += 5, newer.generation = Generation(9), newer.writer = "other", newer.version = Version(4);
  ASSERT_TRUE(store_->put(layout_.head(), as_bytes(head_to_json(newer, *test_key()))).ok());
  ASSERT_TRUE(worker->poll().ok());
  Head older = good;
  older.sequence += 6;
  ASSERT_TRUE(store_->put(layout_.head(), as_bytes(head_to_json(older, *test_key()))).ok());
  EXPECT_EQ(worker->poll().status().code(), StatusCode::kFailedPrecondition);
}

TEST_F(PublishTest, AHeadOfAnotherKeyOrRunIsRefused) {
  Head head;
  head.run = layout_.prefix;
  head.generation = Generation(1);
  head.sequence = 1;
  head.writer = "0123456789abcdef";
  ASSERT_TRUE(store_->put(layout_.head(), as_bytes(head_to_json(head, *other_key()))).ok());
  EXPECT_EQ(subscriber()->poll().status().code(), StatusCode::kPermissionDenied);
  EXPECT_EQ(open(*store_).status().code(), StatusCode::kPermissionDenied);
  head.run = "owner/other";
  ASSERT_TRUE(store_->put(layout_.head(), as_bytes(head_to_json(head, *test_key()))).ok());
  EXPECT_EQ(subscriber()->poll().status().code(), StatusCode::kFailedPrecondition);
  const auto opened = open(*store_);
  EXPECT_EQ(opened.status().code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(opened.status().message(), HasSubstr("owner/other"));
}

TEST_F(PublishTest, AHeadThatVanishesIsUnavailable) {
  const auto learner = publisher();
  ASSERT_TRUE(learner->publish(random_state(description_, random_), 0).ok());
  const auto worker = subscriber();
  ASSERT_TRUE(pull(*worker).ok());
  ASSERT_TRUE(store_->remove(layout_.head()).ok());
  EXPECT_EQ(worker->poll().status().code(), StatusCode::kUnavailable);
  EXPECT_EQ(worker->held()->version, Version(0));
  EXPECT_EQ(learner->publish(random_state(description_, random_), 1).status().code(), StatusCode::kDataLoss);
}

// A store that has nothing new, whatever its reader knows.
class SilentStore final : public ObjectStore {
 public:
  explicit SilentStore(ObjectStore& inner) : inner_(inner) {}
  Result<Object> get(std::string_view key) override { return inner_.get(key); }
  Result<Bytes> get_range(std::string_view key, std::uint64_t offset, std::uint64_t length) override {
    return inner_.get_range(key, offset, length);
  }
  Result<ObjectInfo> head(std::string_view key) override { return inner_.head(key); }
  Result<std::optional<Object>> get_when_changed(std::string_view, const ETag&, std::uint64_t,
                                                 const Watching&) override {
    return std::optional<Object>();
  }
  Result<ETag> put_if_absent(std::string_view key, ByteSpan bytes) override { return inner_.put_if_absent(key, bytes); }
  Result<ETag> put_if_match(std::string_view key, ByteSpan bytes, const ETag& expected) override {
    return inner_.put_if_match(key, bytes, expected);
  }
  Result<ETag> put(std::string_view key, ByteSpan bytes) override { return inner_.put(key, bytes); }
  Result<ListPage> list(std::string_view prefix, std::string_view after, std::size_t limit) override {
    return inner_.list(prefix, after, limit);
  }
  Status remove(std::string_view key) override { return inner_.remove(key); }

 private:
  ObjectStore& inner_;
};

TEST_F(PublishTest, AFirstHeadThatDoesNotComeInTimeIsUnavailable) {
  ASSERT_TRUE(publisher()->publish(random_state(description_, random_), 0).ok());
  SilentStore silent(*store_);
  const Status status = subscriber(silent)->poll().status();
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_THAT(status.message(), HasSubstr("no answer in time"));
}

TEST_F(PublishTest, ADamagedDeltaIsReplacedByAnAnchor) {
  const auto learner = publisher(2);
  GridState state = random_state(description_, random_);
  ASSERT_TRUE(learner->publish(state, 0).ok());
  const auto worker = subscriber();
  ASSERT_TRUE(pull(*worker).ok());
  for (int i = 1; i < 3; ++i) {
    state = next(state);
    ASSERT_TRUE(learner->publish(state, i).ok());
  }
  damage(layout_.delta(Version(1)));
  remove_skip(2, 0);
  auto pulled = pull(*worker);
  ASSERT_TRUE(pulled.ok()) << pulled.status().to_string();
  EXPECT_EQ(pulled->path, "anchor 2");
  EXPECT_EQ(*pulled->state, state);
  EXPECT_EQ(worker->fetch(Version(1)).status().code(), StatusCode::kDataLoss);

  damage(layout_.anchor(Version(2)));
  EXPECT_EQ(pull(*subscriber()).status().code(), StatusCode::kDataLoss);
}

TEST_F(PublishTest, AMissingDeltaIsReplacedByAnAnchor) {
  const auto learner = publisher(2);
  GridState state = random_state(description_, random_);
  ASSERT_TRUE(learner->publish(state, 0).ok());
  const auto worker = subscriber();
  ASSERT_TRUE(pull(*worker).ok());
  for (int i = 1; i < 4; ++i) {
    state = next(state);
    ASSERT_TRUE(learner->publish(state, i).ok());
  }
  ASSERT_TRUE(store_->remove(layout_.delta(Version(1))).ok());
  remove_skip(2, 0);
  const auto pulled = pull(*worker);
  ASSERT_TRUE(pulled.ok()) << pulled.status().to_string();
  EXPECT_EQ(pulled->path, "anchor 2, delta 3");
  ASSERT_TRUE(store_->remove(layout_.anchor(Version(2))).ok());
  EXPECT_FALSE(pull(*subscriber()).ok());
}

TEST_F(PublishTest, AFailedPullLeavesWhatIsHeld) {
  const auto learner = publisher();
  GridState state = random_state(description_, random_);
  ASSERT_TRUE(learner->publish(state, 0).ok());
  const auto worker = subscriber();
  const auto held = pull(*worker);
  ASSERT_TRUE(held.ok());
  ASSERT_TRUE(learner->publish(next(state), 1).ok());
  damage(layout_.delta(Version(1)));
  EXPECT_EQ(pull(*worker).status().code(), StatusCode::kDataLoss);
  EXPECT_EQ(worker->held()->version, Version(0));
  EXPECT_EQ(worker->held()->state, held->state);
  EXPECT_EQ(*worker->held()->state, state);
}

TEST_F(PublishTest, AVersionThatWasPulledAndNotTakenIsNoBaseAndIsNotFetchedAgain) {
  const auto learner = publisher();
  GridState state = random_state(description_, random_);
  ASSERT_TRUE(learner->publish(state, 0).ok());
  std::string calls;
  FaultStore counted(*store_, {}, 1, [&](const StoreCall& call) {
    calls += call.key;
    return ok_status();
  });
  const auto worker = subscriber(counted);
  ASSERT_TRUE(pull(*worker).ok());
  state = next(state);
  ASSERT_TRUE(learner->publish(state, 1).ok());
  ASSERT_TRUE(worker->poll().ok());
  ASSERT_EQ((*worker->subscriber().pull())->path, "delta 1");
  EXPECT_EQ(worker->subscriber().held(), Version(0));
  calls.clear();
  ASSERT_EQ((*worker->subscriber().pull())->path, "delta 1");
  EXPECT_EQ(calls, "");

  state = next(state);
  ASSERT_TRUE(learner->publish(state, 2).ok());
  const auto pulled = pull(*worker);
  ASSERT_TRUE(pulled.ok()) << pulled.status().to_string();
  EXPECT_EQ(pulled->path, "delta 1, delta 2");
  EXPECT_EQ(*pulled->state, state);
}

TEST_F(PublishTest, WhatIsHeldAndNotWhatItShouldBeIsReplacedByAnAnchor) {
  const auto learner = publisher(2);
  GridState state = random_state(description_, random_);
  ASSERT_TRUE(learner->publish(state, 0).ok());
  GridState broken = state;
  broken.tensors[0].q[5] ^= 1;
  const auto worker = Subscriber::create(*store_, layout_, description_, test_key()->public_key(), null_event_sink(),
                                         {.held = [&](TensorIndex i) { return broken.tensors[i]; }});
  ASSERT_TRUE(worker->pull().ok());
  worker->hold();
  for (int i = 1; i < 3; ++i) {
    state = next(state);
    ASSERT_TRUE(learner->publish(state, i).ok());
  }
  ASSERT_TRUE(worker->poll().ok());
  const auto pulled = worker->pull();
  ASSERT_TRUE(pulled.ok()) << pulled.status().to_string();
  EXPECT_EQ((*pulled)->path, "anchor 2");
}

TEST_F(PublishTest, WhatIsHeldAndFitsNoDeltaIsReplacedByAnAnchor) {
  const auto learner = publisher();
  GridState state = random_state(description_, random_);
  ASSERT_TRUE(learner->publish(state, 0).ok());
  GridState broken = state;
  broken.tensors[0].q.assign(broken.tensors[0].q.size(), kMatrixLimit);  // no step up is possible
  Events events;
  const auto worker = Subscriber::create(*store_, layout_, description_, test_key()->public_key(), events,
                                         {.held = [&](TensorIndex i) { return broken.tensors[i]; }});
  ASSERT_TRUE(worker->pull().ok());
  worker->hold();
  ASSERT_TRUE(learner->publish(next(state), 1).ok());
  ASSERT_TRUE(worker->poll().ok());
  const auto pulled = worker->pull();
  ASSERT_TRUE(pulled.ok()) << pulled.status().to_string();
  EXPECT_EQ((*pulled)->path, "anchor 0, delta 1");
  EXPECT_THAT(events.kinds, testing::Not(testing::Contains("hub.error"))) << "nothing is wrong with the hub";
}

TEST_F(PublishTest, ATensorThatIsNoLongerWhatWasCheckedIsNotShown) {
  const auto learner = publisher();
  const GridState zero = random_state(description_, random_);
  ASSERT_TRUE(learner->publish(zero, 0).ok());
  GridState held = zero;
  const auto worker = Subscriber::create(*store_, layout_, description_, test_key()->public_key(), null_event_sink(),
                                         {.held = [&](TensorIndex i) { return held.tensors[i]; }});
  ASSERT_TRUE(worker->pull().ok());
  worker->hold();
  const GridState one = next(zero);
  ASSERT_TRUE(learner->publish(one, 1).ok());
  ASSERT_TRUE(worker->poll().ok());
  const auto pulled = worker->pull();
  ASSERT_TRUE(pulled.ok()) << pulled.status().to_string();
  held.tensors[2].scales[0] ^= 1;
  TensorIndex shown = 0;
  const Status made = (*pulled)->weights([&](TensorIndex i, const GridTensor& tensor) {
    EXPECT_EQ(tensor, one.tensors[i]);
    ++shown;
  });
  EXPECT_EQ(made.code(), StatusCode::kDataLoss) << made.to_string();
  EXPECT_EQ(shown, 2);
}

TEST_F(PublishTest, AStopEndsACheck) {
  const auto learner = publisher();
  const GridState state = random_state(description_, random_);
  ASSERT_TRUE(learner->publish(state, 0).ok());
  std::stop_source stop;
  const auto worker = Subscriber::create(*store_, layout_, description_, test_key()->public_key(), null_event_sink(),
                                         {.held =
                                              [&](TensorIndex i) {
                                                stop.request_stop();
                                                return state.tensors[i];
                                              },
                                          .stop = stop.get_token()});
  ASSERT_TRUE(worker->pull().ok());
  worker->hold();
  ASSERT_TRUE(learner->publish(next(state), 1).ok());
  ASSERT_TRUE(worker->poll().ok());
  EXPECT_EQ(worker->pull().status().code(), StatusCode::kCancelled);
}

TEST_F(PublishTest, ChecksTakeTheirOwnNumberOfThreads) {
  const auto learner = publisher();
  const GridState state = random_state(description_, random_);
  ASSERT_TRUE(learner->publish(state, 0).ok());
  std::atomic<bool> elsewhere{false};
  const auto worker = Subscriber::create(
      *store_, layout_, description_, test_key()->public_key(), null_event_sink(),
      {.threads = 4, .check_threads = 1, .held = [&, here = std::this_thread::get_id()](TensorIndex i) {
         if (std::this_thread::get_id() != here) elsewhere = true;
         // Any other thread has the time to take part.
         const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(2);
         while (std::chrono::steady_clock::now() < end) std::this_thread::yield();
         return state.tensors[i];
       }});
  ASSERT_TRUE(worker->pull().ok());
  worker->hold();
  ASSERT_TRUE(learner->publish(next(state), 1).ok());
  ASSERT_TRUE(worker->poll().ok());
  ASSERT_TRUE(worker->pull().ok());
  EXPECT_FALSE(elsewhere);
}

TEST_F(PublishTest, WhatIsHeldAndIsNotTheBaseOfADeltaIsReplacedByAnAnchor) {
  const auto learner = publisher();
  std::vector<GridState> states = {random_state(description_, random_)};
  for (int i = 0; i < 3; ++i) states.push_back(next(states.back()));
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(learner->publish(states[i], i).ok());
  const auto worker = subscriber();
  ASSERT_TRUE(pull(*worker).ok());
  ASSERT_TRUE(learner->publish(states[2], 2).ok());
  // A delta from another version 1.
  auto manifest =
      manifest_from_json(as_text(store_->get(layout_.manifest(Version(2)))->bytes), test_key()->public_key()).value();
  manifest.delta->base_state.bytes[0] ^= 1;
  const std::string text = manifest_to_json(manifest, *test_key());
  ASSERT_TRUE(overwrite(layout_.manifest(Version(2)), text).ok());
  Head head = *learner->head();
  head.manifest = sha256(text);
  ASSERT_TRUE(overwrite(layout_.head(), head_to_json(head, *test_key())).ok());
  const auto pulled = pull(*worker);
  ASSERT_TRUE(pulled.ok()) << pulled.status().to_string();
  EXPECT_EQ(pulled->path, "anchor 0, delta 1, delta 2");
  EXPECT_EQ(*pulled->state, states[2]);
}

TEST_F(PublishTest, AReadThatWasCorruptOnItsWayIsRepeated) {
  const auto learner = publisher();
  GridState state = random_state(description_, random_);
  ASSERT_TRUE(learner->publish(state, 0).ok());
  int failures = 0;
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    FaultStore faulty(*store_, {.corrupt_read = 0.2}, seed);
    const auto pulled = pull(*subscriber(faulty));
    if (pulled.ok()) {
      EXPECT_EQ(*pulled->state, state);
    } else {
      ++failures;
    }
  }
  EXPECT_LT(failures, 60);
}

TEST_F(PublishTest, AWrongStateDigestIsDataLoss) {
  // A learner whose manifest lies about the state, with objects that are what the manifest says.
  const auto learner = publisher();
  ASSERT_TRUE(learner->publish(random_state(description_, random_), 0).ok());
  auto manifest =
      manifest_from_json(as_text(store_->get(layout_.manifest(Version(0)))->bytes), test_key()->public_key()).value();
  manifest.state.bytes[5] ^= 1;
  Bytes anchor = store_->get(layout_.anchor(Version(0)))->bytes;
  const std::string text = std::string(as_text(anchor));
  const std::string honest =
      learner->head() ? state_digest(description_, *subscriber()->fetch(Version(0))->state).to_hex() : "";
  const std::size_t at = text.find(honest);
  ASSERT_NE(at, std::string::npos);
  const std::string lie = manifest.state.to_hex();
  std::copy(lie.begin(), lie.end(), anchor.begin() + static_cast<std::ptrdiff_t>(at));
  manifest.anchor = describe_object(anchor);
  ASSERT_TRUE(store_->put(layout_.anchor(Version(0)), anchor).ok());
  ASSERT_TRUE(overwrite(layout_.manifest(Version(0)), manifest_to_json(manifest, *test_key())).ok());
  const auto fetched = subscriber()->fetch(Version(0));
  EXPECT_EQ(fetched.status().code(), StatusCode::kDataLoss);
  EXPECT_THAT(fetched.status().message(), HasSubstr("state digest"));
}

TEST_F(PublishTest, AManifestOfAnotherVersionIsRefused) {
  const auto learner = publisher();
  const GridState state = random_state(description_, random_);
  ASSERT_TRUE(learner->publish(state, 0).ok());
  ASSERT_TRUE(learner->publish(next(state), 1).ok());
  const auto other = store_->get(layout_.manifest(Version(0)));
  ASSERT_TRUE(store_->put(layout_.manifest(Version(1)), other->bytes).ok());
  EXPECT_EQ(subscriber()->fetch(Version(1)).status().code(), StatusCode::kDataLoss);
  EXPECT_EQ(pull(*subscriber()).status().code(), StatusCode::kDataLoss);
}

TEST_F(PublishTest, LeftoversOfADeadLearnerAreSteppedOver) {
  GridState state = random_state(description_, random_);
  ASSERT_TRUE(publisher()->publish(state, 0).ok());
  // It died with payload and manifest of 1 to 3 written and head not moved.
  ASSERT_TRUE(overwrite(layout_.delta(Version(1)), "delta").ok());
  ASSERT_TRUE(overwrite(layout_.anchor(Version(2)), "anchor").ok());
  ASSERT_TRUE(overwrite(layout_.manifest(Version(3)), "manifest").ok());
  const auto learner = publisher();
  const auto report = learner->publish(next(state), 1);
  ASSERT_TRUE(report.ok()) << report.status().to_string();
  EXPECT_EQ(report->version, Version(4));
}

TEST_F(PublishTest, AStartThatDiedBeforeTheFirstHeadIsRepeatedAsVersionZero) {
  const GridState state = random_state(description_, random_);
  std::uint64_t operations = 0;
  {
    const auto hub = make_memory_store();
    FaultStore probe(*hub, {}, 1);
    ASSERT_TRUE(open(probe).value()->publish(state, 0).ok());
    operations = probe.operations();
  }
  for (std::uint64_t at = 0; at < operations; ++at) {
    for (const CrashPoint point : {CrashPoint::kBefore, CrashPoint::kAfter}) {
      const auto hub = make_memory_store();
      FaultStore dying(*hub, {}, 1);
      dying.crash_at(at, point);
      if (auto doomed = open(dying); doomed.ok()) {
        EXPECT_FALSE((*doomed)->publish(state, 0).ok());
      }
      auto learner = open(*hub);
      ASSERT_TRUE(learner.ok());
      if ((*learner)->head()) continue;  // it died after head
      const auto report = (*learner)->publish(state, 0);
      ASSERT_TRUE(report.ok()) << report.status().to_string();
      EXPECT_EQ(report->version, Version(0)) << "crash at " << at;
    }
  }
}

TEST_F(PublishTest, ARetryAfterALostAnswerReturnsTheVersionThatWasPublished) {
  // Half of all answers are lost, half of those before anything happened.
  const GridState zero = random_state(description_, random_);
  const GridState one = next(zero);
  int retries = 0;
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    const auto hub = make_memory_store();
    ASSERT_TRUE(open(*hub).value()->publish(zero, 0).ok());
    FaultStore faulty(*hub, {.error = 0.25, .lost_answer = 0.25}, seed);
    auto learner = open(faulty);
    if (!learner.ok()) continue;
    auto report = (*learner)->publish(one, 1);
    for (; !report.ok(); report = (*learner)->publish(one, 1)) {
      ASSERT_EQ(report.status().code(), StatusCode::kUnavailable) << report.status().to_string();
      ASSERT_LT(++retries, 2000);
    }
    EXPECT_EQ(report->version, Version(1)) << "seed " << seed;
    const auto pulled = pull(*subscriber(*hub));
    ASSERT_TRUE(pulled.ok());
    EXPECT_EQ(pulled->version, report->version);
    EXPECT_EQ(*pulled->state, one);
  }
  EXPECT_GT(retries, 20);
}

TEST_F(PublishTest, FullAndReadOnlyHubsSaySo) {
  const GridState state = random_state(description_, random_);
  for (const Status& refusal :
       {resource_exhausted("no space left on device"), permission_denied("read-only file system")}) {
    bool refuse = true;
    const auto hub = make_memory_store();
    FaultStore store(*hub, {}, 1, [&](const StoreCall& call) {
      return refuse && call.operation.starts_with("put") ? refusal : ok_status();
    });
    const auto learner = open(store).value();
    const auto report = learner->publish(state, 0);
    EXPECT_EQ(report.status().code(), refusal.code());
    EXPECT_THAT(report.status().message(), HasSubstr(refusal.message()));
    EXPECT_THAT(report.status().message(), HasSubstr("version 0"));
    refuse = false;
    EXPECT_EQ(learner->publish(state, 0)->version, Version(0));
    refuse = true;
    EXPECT_EQ(learner->update_head(RunState::kFinished, 0).code(), refusal.code());
    EXPECT_EQ(open(store).status().code(), refusal.code());
  }
}

TEST_F(PublishTest, BadArgumentsAreErrors) {
  EXPECT_EQ(open(*store_, 0).status().code(), StatusCode::kInvalidArgument);
  const auto learner = publisher();
  EXPECT_EQ(learner->publish(GridState{}, 0).status().code(), StatusCode::kDataLoss);
  GridState state = random_state(description_, random_);
  state.tensors[0].q[3] = -128;
  EXPECT_EQ(learner->publish(state, 0).status().code(), StatusCode::kDataLoss);
  EXPECT_TRUE(list_all(*store_, "")->empty());
}

}  // namespace
}  // namespace flotilla
