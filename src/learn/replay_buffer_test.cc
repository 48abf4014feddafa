#include "learn/replay_buffer.h"

#include <deque>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/philox.h"

namespace flotilla {
namespace {

using ::testing::ElementsAre;

ReplayGroup group(const std::string& id, std::uint64_t oldest, std::uint64_t newest, std::uint64_t counter = 0) {
  return {.id = GroupId(id),
          .worker = WorkerId("w"),
          .counter = counter,
          .oldest = Version(oldest),
          .newest = Version(newest)};
}
ReplayGroup group(const std::string& id, std::uint64_t version) { return group(id, version, version); }

std::vector<std::string> names(const std::vector<GroupId>& ids) {
  std::vector<std::string> result;
  for (const GroupId& id : ids) result.push_back(id.value());
  return result;
}

ReplayLimits limits(std::int64_t batch, std::int64_t reuse = 3) {
  return {.batch_groups = batch, .wanted_groups = 0, .max_staleness = 3, .max_reuse = reuse};
}

TEST(ReplayBuffer, DrawsAllOrNothing) {
  ReplayBuffer buffer(limits(2));
  buffer.admit(group("a", 0), Version(0));
  EXPECT_FALSE(buffer.draw(Version(0)));
  buffer.admit(group("b", 0), Version(0));
  EXPECT_EQ(buffer.draw(Version(0))->size(), 2u);
}

TEST(ReplayBuffer, DrawsNeverUsedFirstThenNewestThenReuse) {
  ReplayBuffer buffer(limits(3));
  for (const auto& [id, version] : {std::pair("old", 4), {"new", 6}, {"used", 6}, {"middle", 5}}) {
    buffer.admit(group(id, version), Version(6));
  }
  buffer.consume({GroupId("used")});
  EXPECT_THAT(names(*buffer.draw(Version(6))), ElementsAre("new", "middle", "old"));
  buffer.consume({GroupId("new"), GroupId("middle")});
  EXPECT_THAT(names(*buffer.draw(Version(6))), ElementsAre("old", "used", "new"));
}

TEST(ReplayBuffer, LaterArrivalsOfOneVersionComeFirst) {
  ReplayBuffer buffer(limits(1));
  buffer.admit(group("first", 2), Version(2));
  buffer.admit(group("second", 2), Version(2));
  EXPECT_THAT(names(*buffer.draw(Version(2))), ElementsAre("second"));
}

TEST(ReplayBuffer, AGroupLeavesAfterItsLastUse) {
  ReplayBuffer buffer(limits(1, 2));
  buffer.admit(group("a", 0), Version(0));
  EXPECT_TRUE(buffer.consume({GroupId("a")}).empty());
  EXPECT_THAT(names(buffer.consume({GroupId("a")})), ElementsAre("a"));
  EXPECT_EQ(buffer.size(), 0);
  EXPECT_EQ(buffer.admit(group("a", 0), Version(0)), Admission::kDuplicate);
}

TEST(ReplayBuffer, StalenessCountsFromTheOldestTokenAndIsTakenAtTheDraw) {
  ReplayBuffer buffer(limits(1));
  EXPECT_EQ(buffer.admit(group("mixed", 2, 5), Version(5)), Admission::kAdmitted);
  EXPECT_EQ(buffer.staleness(GroupId("mixed"), Version(5)), 3);
  EXPECT_TRUE(buffer.draw(Version(5)));
  EXPECT_FALSE(buffer.draw(Version(6)));
  EXPECT_EQ(buffer.expire(Version(5)).size(), 0u);
  EXPECT_EQ(buffer.expire(Version(6)).size(), 1u);
  EXPECT_EQ(buffer.admit(group("late", 2), Version(6)), Admission::kStale);
  EXPECT_EQ(buffer.admit(group("early", 7), Version(6)), Admission::kFuture);
}

TEST(ReplayBuffer, SequentialTakesExactlyTheNewestVersionInTheOrderOfCounters) {
  ReplayLimits sequential = limits(2, 1);
  sequential.sequential = true;
  ReplayBuffer buffer(sequential);
  EXPECT_EQ(buffer.admit(group("old", 3), Version(4)), Admission::kOtherVersion);
  EXPECT_EQ(buffer.admit(group("mixed", 3, 4), Version(4)), Admission::kOtherVersion);
  buffer.admit(group("z", 4, 4, 10), Version(4));
  buffer.admit(group("y", 4, 4, 12), Version(4));
  EXPECT_EQ(buffer.wanted(Version(4)), 0);
  buffer.admit(group("x", 4, 4, 11), Version(4));
  EXPECT_THAT(names(*buffer.draw(Version(4))), ElementsAre("z", "x"));
  EXPECT_FALSE(buffer.draw(Version(5)));
  EXPECT_EQ(buffer.expire(Version(5)).size(), 3u);
  EXPECT_EQ(buffer.wanted(Version(5)), 2);
}

TEST(ReplayBuffer, WantsWhatIsMissingToABatchAndTheReserve) {
  ReplayLimits reserve = limits(4);
  reserve.wanted_groups = 2;
  ReplayBuffer buffer(reserve);
  EXPECT_EQ(buffer.wanted(Version(0)), 6);
  for (int i = 0; i < 5; ++i) buffer.admit(group(std::to_string(i), 0), Version(0));
  EXPECT_EQ(buffer.wanted(Version(0)), 1);
  buffer.consume(*buffer.draw(Version(0)));
  EXPECT_EQ(buffer.wanted(Version(0)), 5) << "used groups don't replace fresh ones";
}

TEST(ReplayBuffer, HasACapacity) {
  ReplayLimits small = limits(1);
  small.capacity = 2;
  ReplayBuffer buffer(small);
  EXPECT_EQ(buffer.admit(group("a", 0), Version(0)), Admission::kAdmitted);
  EXPECT_EQ(buffer.admit(group("b", 0), Version(0)), Admission::kAdmitted);
  EXPECT_EQ(buffer.admit(group("c", 0), Version(0)), Admission::kFull);
  EXPECT_FALSE(buffer.knows(GroupId("c")));
}

TEST(ReplayBuffer, RestoresItselfAndRejectsEveryPrefixAndRest) {
  ReplayBuffer buffer(limits(2));
  for (int i = 0; i < 5; ++i) buffer.admit(group("group" + std::to_string(i), i, i + 1, i), Version(6));
  buffer.consume(*buffer.draw(Version(5)));
  const Bytes bytes = buffer.serialize();
  const ReplayBuffer again = ReplayBuffer::restore(limits(2), bytes).value();
  EXPECT_EQ(again.serialize(), bytes);
  EXPECT_EQ(again.groups(), buffer.groups());
  EXPECT_EQ(again.draw(Version(5)), buffer.draw(Version(5)));
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_FALSE(ReplayBuffer::restore(limits(2), ByteSpan(bytes).first(size)).ok()) << size;
  }
  Bytes longer = bytes;
  longer.push_back(0);
  EXPECT_EQ(ReplayBuffer::restore(limits(2), longer).status().code(), StatusCode::kDataLoss);
  Bytes other = bytes;
  other[0] = 2;
  EXPECT_EQ(ReplayBuffer::restore(limits(2), other).status().code(), StatusCode::kDataLoss);
}

// A learner and a fleet in virtual time: groups are lost, delayed, delivered twice and out of order; the learner dies
// and comes back from its last checkpoint while the published versions stay.
class Simulation {
 public:
  explicit Simulation(std::uint64_t seed) : random_(seed, 0), buffer_(ReplayLimits{}) {
    limits_ = {.batch_groups = 1 + static_cast<std::int64_t>(random_.below(5)),
               .wanted_groups = static_cast<std::int64_t>(random_.below(6)),
               .max_staleness = static_cast<std::int64_t>(random_.below(4)),
               .max_reuse = 1 + static_cast<std::int64_t>(random_.below(3)),
               .sequential = random_.below(4) == 0,
               .capacity = 8 + static_cast<std::int64_t>(random_.below(100))};
    buffer_ = ReplayBuffer(limits_);
    publish_every_ = 1 + random_.below(3);
    checkpoint_ = {buffer_.serialize(), 0, {}};
  }

  void run(int rounds) {
    for (int i = 0; i < rounds; ++i) {
      switch (random_.below(8)) {
        case 0:
        case 1:
        case 2: make_group(); break;
        case 3:
        case 4: deliver(); break;
        case 5:
        case 6: step(); break;
        case 7:
          if (random_.below(4) == 0)
            die();
          else
            checkpoint();
          break;
      }
      if (::testing::Test::HasFailure()) return;
    }
  }

  std::int64_t steps() const { return taken_; }

 private:
  void make_group() {
    const auto span = random_.below(2);
    const std::uint64_t end = newest_ - std::min<std::uint64_t>(newest_, random_.below(3));
    ++next_id_;
    flying_.push_back(group(std::to_string(next_id_), end - std::min(end, span), end, next_id_));
    if (random_.below(5) == 0) flying_.push_back(flying_.back());  // delivered twice
  }

  void deliver() {
    if (flying_.empty()) return;
    const auto at = static_cast<std::ptrdiff_t>(random_.below(flying_.size()));
    const ReplayGroup arrived = flying_[at];
    flying_.erase(flying_.begin() + at);
    if (random_.below(10) == 0) return;  // lost
    const bool known = buffer_.knows(arrived.id);
    const Admission admission = buffer_.admit(arrived, Version(newest_));
    EXPECT_EQ(known, admission == Admission::kDuplicate);
    EXPECT_LE(buffer_.size(), limits_.capacity);
    if (random_.below(10) == 0) flying_.push_back(arrived);
  }

  void step() {
    buffer_.expire(Version(newest_));
    const auto batch = buffer_.draw(Version(newest_));
    if (!batch) {
      EXPECT_LT(buffer_.eligible(Version(newest_)), limits_.batch_groups);
      return;
    }
    EXPECT_EQ(std::ssize(*batch), limits_.batch_groups);
    EXPECT_EQ(std::set<GroupId>(batch->begin(), batch->end()).size(), batch->size()) << "a group twice in one batch";
    std::int64_t fresh = 0;
    for (const GroupId& id : *batch) {
      const ReplayGroup& drawn = buffer_.at(id);
      EXPECT_LE(buffer_.staleness(id, Version(newest_)), limits_.max_staleness);
      EXPECT_TRUE(!limits_.sequential || drawn.oldest == Version(newest_));
      fresh += drawn.reuse == 0;
      lineage_[step_ + 1].push_back(id);
    }
    EXPECT_EQ(fresh, std::min(limits_.batch_groups, buffer_.never_used(Version(newest_))));
    buffer_.consume(*batch);
    ++step_;
    ++taken_;
    std::map<GroupId, std::int64_t> uses;
    for (const auto& [number, ids] : lineage_) {
      for (const GroupId& id : ids) EXPECT_LE(++uses[id], limits_.max_reuse) << "trained on too often";
    }
    if (step_ % publish_every_ == 0) ++newest_;
  }

  void checkpoint() { checkpoint_ = {buffer_.serialize(), step_, lineage_}; }
  void die() {
    buffer_ = ReplayBuffer::restore(limits_, checkpoint_.buffer).value();
    step_ = checkpoint_.step;
    lineage_ = checkpoint_.lineage;
  }

  struct Checkpoint {
    Bytes buffer;
    std::uint64_t step = 0;
    std::map<std::uint64_t, std::vector<GroupId>> lineage;
  };

  PhiloxStream random_;
  ReplayLimits limits_;
  ReplayBuffer buffer_;
  std::uint64_t publish_every_ = 1, newest_ = 0, step_ = 0, next_id_ = 0;
  std::int64_t taken_ = 0;
  std::deque<ReplayGroup> flying_;
  std::map<std::uint64_t, std::vector<GroupId>> lineage_;  // step -> groups, on the surviving lineage
  Checkpoint checkpoint_;
};

TEST(ReplayBufferSimulation, KeepsItsPromisesUnderLossDuplicatesAndRestarts) {
  std::int64_t steps = 0;
  for (std::uint64_t seed = 0; seed < 3000; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Simulation simulation(seed);
    simulation.run(150);
    steps += simulation.steps();
    if (HasFailure()) return;
  }
  EXPECT_GT(steps, 10000);
}

}  // namespace
}  // namespace flotilla
