// Deltas that pass over others: when they are written, and which way readers take.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

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

// A hub of versions 0 to 117 with an anchor every 20 and skips every 10.
class SkipTest : public PublishTest {
 protected:
  static constexpr int kVersions = 118;
  SkipTest() : learner_(open_learner()) {}
  std::unique_ptr<Publisher> open_learner() {
    return Publisher::open(*store_, layout_, model_, test_key(), {.anchor_every = 20, .skip_every = 10},
                           null_event_sink())
        .value();
  }
  void publish_until(int end) {
    for (; std::ssize(states_) < end;) {
      states_.push_back(states_.empty() ? random_state(model_, random_)
                                        : changed_state(model_, states_.back(), {.integers = 0.001}, random_));
      const auto report = learner_->publish(states_.back(), states_.size());
      ASSERT_TRUE(report.ok()) << report.status().to_string();
      reports_.push_back(*report);
    }
  }
  std::unique_ptr<StateHolder> holder() { return std::make_unique<StateHolder>(counted_, layout_, model_); }
  std::int64_t fetched(std::string_view part) const {
    return std::ranges::count_if(keys_, [&](const std::string& key) { return key.find(part) != std::string::npos; });
  }

  const ModelDescription model_ = one_matrix(256, 256);
  std::unique_ptr<Publisher> learner_;
  std::vector<GridState> states_;
  std::vector<PublishReport> reports_;
  std::set<std::string> keys_;  // that subscribers read
  FaultStore counted_{*store_, {}, 1, [this](const StoreCall& call) {
                        keys_.emplace(call.key);
                        return ok_status();
                      }};
};

TEST_F(SkipTest, AWorkerThatWasAwayFor100VersionsNeedsOneAnchorAndFewObjects) {
  publish_until(kVersions);
  const auto worker = holder();
  const auto pulled = pull(*worker);
  ASSERT_TRUE(pulled.ok()) << pulled.status().to_string();
  EXPECT_EQ(pulled->path,
            "anchor 100, skip 110, delta 111, delta 112, delta 113, delta 114, delta 115, delta 116, delta 117");
  EXPECT_EQ(*pulled->state, states_.back());
  EXPECT_EQ(fetched("anchor"), 1);
  EXPECT_EQ(fetched("/delta") + fetched("/skip-"), 8);
  EXPECT_EQ(fetched("manifest"), 9) << "one for each object";
}

TEST_F(SkipTest, AWorkerThatStillHoldsAnOldVersionNeedsNoAnchor) {
  publish_until(14);
  const auto worker = holder();
  ASSERT_TRUE(pull(*worker).ok());
  publish_until(kVersions);
  keys_.clear();
  const auto pulled = pull(*worker);
  ASSERT_TRUE(pulled.ok()) << pulled.status().to_string();
  EXPECT_EQ(
      pulled->path,
      "delta 14, delta 15, delta 16, delta 17, delta 18, delta 19, delta 20, skip 40, skip 60, skip 80, skip 100, "
      "skip 110, delta 111, delta 112, delta 113, delta 114, delta 115, delta 116, delta 117");
  EXPECT_EQ(*pulled->state, states_.back());
  EXPECT_EQ(fetched("manifest"), 19);
  std::uint64_t deltas = 0;
  for (std::size_t i = 14; i < states_.size(); ++i) deltas += reports_[i].delta_bytes;
  EXPECT_LT(pulled->bytes, deltas * 3 / 4);
}

TEST_F(SkipTest, ByDefaultSkipsLeadFromAnchorToAnchor) {
  learner_ = Publisher::open(*store_, layout_, model_, test_key(), {}, null_event_sink()).value();
  publish_until(14);
  const auto held = holder(), fresh = holder();
  ASSERT_TRUE(pull(*held).ok());
  publish_until(105);
  const auto by_skips = pull(*held), by_anchor = pull(*fresh);
  ASSERT_TRUE(by_skips.ok() && by_anchor.ok());
  EXPECT_EQ(
      by_skips->path,
      "delta 14, delta 15, delta 16, delta 17, delta 18, delta 19, delta 20, skip 40, skip 60, skip 80, skip 100, "
      "delta 101, delta 102, delta 103, delta 104");
  EXPECT_EQ(by_anchor->path, "anchor 100, delta 101, delta 102, delta 103, delta 104");
  EXPECT_EQ(*by_skips->state, states_.back());
  EXPECT_EQ(*by_anchor->state, states_.back());
}

TEST_F(SkipTest, EveryVersionComesByEveryPath) {
  publish_until(45);
  for (int from = 0; from < 45; ++from) {
    StateHolder worker(*store_, layout_, model_);
    const auto fetched = worker.fetch(Version(static_cast<std::uint64_t>(from)));
    ASSERT_TRUE(fetched.ok()) << fetched.status().to_string();
    ASSERT_EQ(*fetched->state, states_[static_cast<std::size_t>(from)]) << fetched->path;
  }
}

TEST_F(SkipTest, ASkipIsSmallerThanWhatItPassesOver) {
  publish_until(61);
  for (const std::size_t at : {10, 20, 30, 40, 50, 60}) {
    const Manifest manifest =
        manifest_from_json(as_text(store_->get(layout_.manifest(Version(at)))->bytes), test_key()->public_key())
            .value();
    EXPECT_EQ(manifest.history, history_digest(no_history(model_)));
    ASSERT_EQ(manifest.skips.size(), at % 20 == 0 ? 2u : 1u) << at;
    for (const DeltaObject& skip : manifest.skips) {
      std::uint64_t way = 0;
      for (std::size_t i = skip.base.value() + 1; i <= at; ++i) way += reports_[i].delta_bytes;
      EXPECT_LT(skip.object.size, way) << at;
    }
    EXPECT_EQ(manifest.skips.back().base.value(), at - 10);
    EXPECT_EQ(manifest.skips.front().base.value(), at % 20 == 0 ? at - 20 : at - 10);
  }
}

TEST_F(SkipTest, ADamagedSkipIsPassedOver) {
  publish_until(14);
  const auto worker = holder();
  ASSERT_TRUE(pull(*worker).ok());
  publish_until(41);
  damage(layout_.skip(Version(40), Version(20)));
  const auto pulled = pull(*worker);
  ASSERT_TRUE(pulled.ok()) << pulled.status().to_string();
  EXPECT_EQ(pulled->path, "delta 14, delta 15, delta 16, delta 17, delta 18, delta 19, delta 20, skip 30, skip 40");
  EXPECT_EQ(*pulled->state, states_.back());
}

TEST_F(SkipTest, ASkipThatDoesNotFitWhatIsHeldGivesWayToAnAnchor) {
  publish_until(11);
  GridState broken = states_.back();
  broken.tensors[0].q[7] ^= 1;
  const auto worker = Subscriber::create(*store_, layout_, model_, test_key()->public_key(), null_event_sink(),
                                         {.held = [&](TensorIndex i) { return broken.tensors[i]; }});
  ASSERT_TRUE(worker->pull().ok());
  worker->hold();
  publish_until(21);
  ASSERT_TRUE(worker->poll().ok());
  const auto pulled = worker->pull();
  ASSERT_TRUE(pulled.ok()) << pulled.status().to_string();
  EXPECT_EQ((*pulled)->path, "anchor 20");
}

TEST_F(SkipTest, ASkipForWhichReadersHaveNoRoomIsNotWritten) {
  const ModelDescription model = one_matrix(2048, 1024);
  const auto learner =
      Publisher::open(*store_, layout_, model, test_key(), {.anchor_every = 20, .skip_every = 10}, null_event_sink())
          .value();
  GridState state = random_state(model, random_);
  for (int i = 0; i <= 10; ++i) {
    const auto report = learner->publish(state, 0);
    ASSERT_TRUE(report.ok());
    EXPECT_EQ(report->skip_bytes, 0u);
    EXPECT_EQ(report->anchor_bytes > 0, i == 0);
    state = changed_state(model, state, {.integers = 0.04}, random_);
  }
}

}  // namespace
}  // namespace flotilla
