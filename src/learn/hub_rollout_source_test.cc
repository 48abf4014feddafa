#include "learn/hub_rollout_source.h"

#include <gtest/gtest.h>

#include <array>
#include <set>

#include "learn/hub_snapshot_sink.h"
#include "rollout/claim.h"
#include "rollout/group_file.h"
#include "rollout/run_for_tests.h"
#include "rollout/worker_counter.h"
#include "store/fault_store.h"

namespace flotilla {
namespace {

// A run with two published versions and honest groups made by the engine.
class HubRolloutSourceTest : public testing::Test {
 protected:
  HubRolloutSourceTest() : versions_(*run_.store, run_.layout, run_.learner->public_key()) {
    run_.publish();
    run_.publish();
  }

  GroupExpectations expectations() {
    return {.run = &run_.spec,
            .environment = &toy_.environment,
            .tokenizer = toy_.tokenizer.get(),
            .tokenizer_digest = toy_.tokenizer->digest(),
            .corpus = run_.spec.environment,
            .vocabulary = toy_model().description.vocabulary,
            .context = toy_model().description.context};
  }
  HubRolloutSource source(HubRolloutOptions options = {}) {
    return {*run_.store, run_.layout, expectations(), versions_, options};
  }

  Group honest(std::uint64_t counter, std::uint64_t version = 0, const WorkerId& worker = WorkerId("somebody")) {
    Group group;
    GroupIdentity& identity = group.identity;
    identity.run = run_.spec.run;
    identity.seed = run_.spec.seed;
    identity.worker = worker;
    identity.operator_id = OperatorId("somebody");
    identity.counter = counter;
    identity.task = run_task(run_.spec, worker, counter, toy_.environment.task_count(Split::kTrain));
    identity.backend = "cpu";
    identity.tokenizer = toy_.tokenizer->digest();
    identity.environment = toy_.environment.digest();
    identity.corpus = run_.spec.environment;
    identity.sampling = {.temperature = run_.spec.temperature};
    identity.group = group_id(identity);
    const SweepItem item{.task = toy_.environment.task(Split::kTrain, identity.task).value(),
                         .sample_group = sample_group(identity.group),
                         .episodes = run_.spec.group_size};
    const SweepSettings settings{.seed = identity.seed,
                                 .sampling = identity.sampling,
                                 .version = Version(version),
                                 .state = versions_.state_of(Version(version)).value()};
    const auto keep = [&](FinishedGroup finished) {
      group.prompt_tokens = finished.prompt_tokens;
      group.episodes = std::move(finished.episodes);
      return ok_status();
    };
    const auto done = run_sweep(*engine_, toy_.rules, settings, std::span(&item, 1), {.on_group = keep});
    EXPECT_TRUE(done.ok()) << done.status().to_string();
    return group;
  }

  void upload(const Group& group) {
    const std::string key = run_.layout.rollout(group.oldest_version(), group.identity.worker, group.identity.group);
    ASSERT_TRUE(run_.store->put_if_absent(key, write_group(group)).ok());
  }

  // Why the learner would not take the group.
  std::string refusal(Group group) {
    const Status status = validate_group(group, expectations(), [this](Version v) { return versions_.state_of(v); });
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << status.to_string();
    return status.message();
  }

  ToyRun run_;
  Toy toy_;
  std::unique_ptr<Engine> engine_ = toy_engine();
  HubVersions versions_;
};

const auto kNobody = [](const GroupId&) { return false; };

TEST_F(HubRolloutSourceTest, ReturnsEachGroupOnce) {
  HubRolloutSource source = this->source();
  EXPECT_TRUE(source.poll(Version(0), Version(1), kNobody)->groups.empty());
  for (const std::uint64_t counter : {0, 1, 2}) upload(honest(counter, counter % 2));
  const RolloutPoll poll = source.poll(Version(0), Version(1), kNobody).value();
  EXPECT_EQ(poll.groups.size(), 3u);
  EXPECT_TRUE(poll.refused.empty());
  EXPECT_EQ(poll.groups[0].file, write_group(poll.groups[0].group));
  EXPECT_TRUE(source.poll(Version(0), Version(1), kNobody)->groups.empty());
  upload(honest(3));
  EXPECT_EQ(source.poll(Version(0), Version(1), kNobody)->groups.size(), 1u);
}

TEST_F(HubRolloutSourceTest, LeavesOutWhatIsKnownOrTooOld) {
  const Group known = honest(0, 1);
  upload(known);
  upload(honest(1, 0));
  upload(honest(2, 1));
  HubRolloutSource source = this->source();
  const auto is_known = [&](const GroupId& id) { return id == known.identity.group; };
  const RolloutPoll poll = source.poll(Version(1), Version(1), is_known).value();
  ASSERT_EQ(poll.groups.size(), 1u);
  EXPECT_EQ(poll.groups[0].group.identity.counter, 2u);
}

TEST_F(HubRolloutSourceTest, FetchesSoManyAPollAndTheRestLater) {
  for (std::uint64_t counter = 0; counter < 5; ++counter) upload(honest(counter));
  HubRolloutSource source = this->source({.groups_a_poll = 2});
  EXPECT_EQ(source.poll(Version(0), Version(1), kNobody)->groups.size(), 2u);
  EXPECT_EQ(source.poll(Version(0), Version(1), kNobody)->groups.size(), 2u);
  EXPECT_EQ(source.poll(Version(0), Version(1), kNobody)->groups.size(), 1u);
}

TEST_F(HubRolloutSourceTest, RefusesBadObjectsOnceWithAReason) {
  const Group group = honest(0);
  Bytes torn = write_group(group);
  torn.resize(torn.size() / 2);
  const std::string prefix = run_.layout.rollouts();
  ASSERT_TRUE(run_.store->put_if_absent(prefix + "0000000000/somebody/torn", torn).ok());
  ASSERT_TRUE(
      run_.store->put_if_absent(prefix + "0000000001/somebody/" + group.identity.group.value(), write_group(group))
          .ok());
  ASSERT_TRUE(run_.store->put_if_absent(prefix + "0000000001/stray", to_bytes("?")).ok());
  ASSERT_TRUE(run_.store->put_if_absent(prefix + "1/somebody/unpadded", to_bytes("?")).ok());
  HubRolloutSource source = this->source();
  EXPECT_TRUE(source.poll(Version(0), Version(1), kNobody)->refused.empty())
      << "the bytes may have been hurt on the way";
  const RolloutPoll poll = source.poll(Version(0), Version(1), kNobody).value();
  EXPECT_TRUE(poll.groups.empty());
  EXPECT_EQ(poll.refused.size(), 4u);
  EXPECT_TRUE(source.poll(Version(0), Version(1), kNobody)->refused.empty());
}

TEST_F(HubRolloutSourceTest, RefusesAGroupOfAVersionThatWasNeverPublished) {
  Group group = honest(0);
  for (Episode& episode : group.episodes) {
    for (VersionSpan& span : episode.spans) span.version = Version(7);
  }
  upload(group);
  const RolloutPoll poll = source().poll(Version(0), Version(1), kNobody).value();
  ASSERT_EQ(poll.refused.size(), 1u);
  EXPECT_NE(poll.refused[0].reason.find("was not published"), std::string::npos);
}

TEST_F(HubRolloutSourceTest, RefusesGroupsOfVersionsThatTheRunHasGoneBackFrom) {
  // Versions 0 and 1 contain no steps; 2 and 3 are given up by 4, which leads to 5.
  for (const std::uint64_t step : {10, 20, 5, 25}) run_.publish(step);
  for (std::uint64_t version = 0; version <= 5; ++version) upload(honest(version, version));
  HubRolloutSource before = source();
  EXPECT_EQ(before.poll(Version(0), Version(3), kNobody)->groups.size(), 6u) << "nobody has gone back yet";
  HubRolloutSource source = this->source();
  const RolloutPoll poll = source.poll(Version(0), Version(5), kNobody).value();
  std::vector<std::uint64_t> taken;
  for (const ReceivedGroup& received : poll.groups) taken.push_back(received.group.oldest_version().value());
  EXPECT_EQ(taken, (std::vector<std::uint64_t>{0, 1, 4, 5}));
  ASSERT_EQ(poll.refused.size(), 2u);
  EXPECT_NE(poll.refused[0].reason.find("the run has gone back"), std::string::npos) << poll.refused[0].reason;
}

TEST_F(HubRolloutSourceTest, ATornManifestUnderASkippedNumberIsNoVersion) {
  const Group group = honest(0, 0);
  run_.publish(5);
  ASSERT_TRUE(run_.store->put(run_.layout.manifest(Version(1)), to_bytes("{\"for")).ok());
  HubVersions versions(*run_.store, run_.layout, run_.learner->public_key());
  HubRolloutSource source(*run_.store, run_.layout, expectations(), versions);
  upload(group);
  const auto poll = source.poll(Version(0), Version(2), kNobody);
  ASSERT_TRUE(poll.ok()) << poll.status().to_string();
  EXPECT_EQ(poll->groups.size(), 1u);
  ASSERT_TRUE(run_.store->put(run_.layout.manifest(Version(2)), to_bytes("{\"for")).ok());
  HubVersions torn(*run_.store, run_.layout, run_.learner->public_key());
  EXPECT_EQ(torn.is_abandoned(Version(0), Version(2)).status().code(), StatusCode::kDataLoss) << "head names it";
}

TEST_F(HubRolloutSourceTest, RefusesAnObjectThatIsTooLargeWithoutFetchingIt) {
  upload(honest(0));
  HubRolloutSource source = this->source({.group_bytes_max = 100});
  ASSERT_TRUE(source.poll(Version(0), Version(1), kNobody).ok());
  ASSERT_EQ(source.poll(Version(0), Version(1), kNobody)->refused.size(), 1u);
}

TEST_F(HubRolloutSourceTest, WhileTheHubIsCrowdedTheFleetIsAskedForNothing) {
  bool crowded = true;
  HubSnapshotSink sink(
      std::move(run_.publisher), versions_, [] {}, [&] { return crowded; });
  const auto wanted = [&] {
    return head_from_json(as_text(run_.store->get(run_.layout.head())->bytes), run_.learner->public_key())->wanted;
  };
  ASSERT_TRUE(sink.update(RunState::kRunning, 5).ok());
  EXPECT_EQ(wanted(), 0);
  crowded = false;
  ASSERT_TRUE(sink.update(RunState::kRunning, 5).ok());
  EXPECT_EQ(wanted(), 5);
}

TEST_F(HubRolloutSourceTest, LosesNothingWhenTheHubFails) {
  for (std::uint64_t counter = 0; counter < 20; ++counter) upload(honest(counter));
  FaultStore faulty(*run_.store, {.error = 0.2, .corrupt_read = 0.1}, 4);
  HubVersions versions(faulty, run_.layout, run_.learner->public_key());
  HubRolloutSource source(faulty, run_.layout, expectations(), versions);
  std::size_t groups = 0, refused = 0;
  for (int i = 0; i < 200; ++i) {
    const auto poll = source.poll(Version(0), Version(1), kNobody);
    if (!poll.ok()) continue;
    groups += poll->groups.size();
    refused += poll->refused.size();
    for (const RefusedGroup& group : poll->refused) ADD_FAILURE() << group.reason;
  }
  EXPECT_EQ(groups, 20u);
  EXPECT_EQ(refused, 0u);
}

TEST_F(HubRolloutSourceTest, ValidationNamesWhatIsWrong) {
  const Group group = honest(0);
  ASSERT_TRUE(validate_group(group, expectations(), [this](Version v) { return versions_.state_of(v); }).ok());
  const auto changed = [&](auto change) {
    Group copy = group;
    change(copy);
    return refusal(copy);
  };
  EXPECT_NE(changed([](Group& g) { g.identity.run = "owner/other"; }).find("of run"), std::string::npos);
  EXPECT_NE(changed([](Group& g) { g.identity.seed = 1; }).find("seed"), std::string::npos);
  EXPECT_NE(changed([](Group& g) { g.identity.split = Split::kHeldOut; }).find("split"), std::string::npos);
  EXPECT_NE(changed([](Group& g) { g.identity.arithmetic = 7; }).find("arithmetic"), std::string::npos);
  EXPECT_NE(changed([](Group& g) { g.identity.sampling.temperature = 0.5f; }).find("temperature"), std::string::npos);
  EXPECT_NE(changed([](Group& g) { g.identity.tokenizer = sha256("x"); }).find("tokenizer"), std::string::npos);
  EXPECT_NE(changed([](Group& g) { g.identity.environment = sha256("x"); }).find("environment"), std::string::npos);
  EXPECT_NE(changed([](Group& g) { g.identity.corpus = sha256("x"); }).find("corpus"), std::string::npos);
  EXPECT_NE(changed([](Group& g) { ++g.identity.task; }).find("was assigned"), std::string::npos);
  EXPECT_NE(changed([](Group& g) { ++g.identity.counter; }).find("was assigned"), std::string::npos);
  EXPECT_NE(changed([](Group& g) { g.episodes.pop_back(); }).find("episodes"), std::string::npos);
  EXPECT_NE(changed([](Group& g) { ++g.episodes[0].tokens[1]; }).find("prompt"), std::string::npos);
  EXPECT_NE(changed([](Group& g) { g.episodes[1].tokens.back() = 20; }).find("vocabulary"), std::string::npos);
  EXPECT_NE(changed([](Group& g) { g.episodes[0].turns.assign(5, 1); }).find("turns"), std::string::npos);
  EXPECT_NE(changed([](Group& g) {
              g.episodes[0].sources.insert(g.episodes[0].sources.end(), 25, TokenSource::kModel);
            }).find("model tokens"),
            std::string::npos);
  EXPECT_NE(changed([](Group& g) { g.episodes[0].tokens.resize(129); }).find("context"), std::string::npos);
  EXPECT_NE(changed([](Group& g) {
              for (Episode& episode : g.episodes) episode.spans[0].version = Version(9);
            }).find("was not published"),
            std::string::npos);
  EXPECT_NE(changed([](Group& g) {
              for (VersionSpan& span : g.episodes[1].spans) span.version = Version(1);
            }).find("a group of this run is of one version"),
            std::string::npos);
  EXPECT_NE(changed([](Group& g) { g.episodes[0].spans[0].state = sha256("x"); }).find("state of version"),
            std::string::npos);
}

TEST_F(HubRolloutSourceTest, InARunWithClaimsAGroupIsOfABlockThatItsWorkerHasClaimed) {
  run_.spec.claims = 64;
  const auto keys = std::array{SigningKey::generate().value(), SigningKey::generate().value()};
  const TaskOrder order = task_order(run_.spec, toy_.environment.task_count(Split::kTrain));
  const auto made = [&](const SigningKey& key, std::uint64_t block, std::uint64_t index) {
    const Group group = honest(order.counter(0, block, index), 0, worker_id(key.public_key()));
    upload(group);
    return group.identity.group;
  };
  const auto claim = [&](const SigningKey& key, std::uint64_t block, std::uint64_t lease) {
    const ClaimId id{0, block, lease};
    ASSERT_TRUE(
        run_.store->put_if_absent(claim_key(run_.layout, id), as_bytes(claim_to_json(run_.layout.prefix, id, key)))
            .ok());
  };
  HubRolloutSource source = this->source();
  const auto taken = [&] {
    std::set<GroupId> ids;
    const RolloutPoll poll = source.poll(Version(0), Version(1), kNobody).value();
    for (const ReceivedGroup& received : poll.groups) ids.insert(received.group.identity.group);
    return ids;
  };
  const std::uint64_t mine = order.first_block(0, worker_id(keys[0]->public_key()));
  claim(*keys[0], mine, 0);
  const GroupId good = made(*keys[0], mine, 3);
  made(*keys[1], mine, 3);                         // the same task, of one who has not claimed it
  made(*keys[0], (mine + 1) % order.blocks(), 0);  // not claimed by anyone
  EXPECT_EQ(taken(), std::set{good});
  claim(*keys[1], mine, 1);
  const GroupId second = made(*keys[1], mine, 4);
  EXPECT_EQ(taken(), std::set{second}) << "the lease has changed hands";
}

TEST_F(HubRolloutSourceTest, AnUnknownVersionIsNoVerdictWhileTheHubIsAway) {
  const Group group = honest(0);
  const Status status =
      validate_group(group, expectations(), [](Version) -> Result<Sha256Digest> { return unavailable("away"); });
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
}

}  // namespace
}  // namespace flotilla
