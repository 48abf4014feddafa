#include "rollout/group.h"

#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <set>

#include <fmt/format.h>

#include "rollout/group_for_tests.h"

namespace flotilla {
namespace {

TEST(AssignedTask, EveryWorkerMeetsEveryTaskOnce) {
  for (const std::uint64_t tasks : {1, 2, 3, 5, 64, 1000, 19500}) {
    std::set<std::uint64_t> met;
    for (std::uint64_t counter = 0; counter < tasks; ++counter) {
      const std::uint64_t task = assigned_task(42, WorkerId("a"), counter, tasks);
      ASSERT_LT(task, tasks);
      met.insert(task);
    }
    EXPECT_EQ(met.size(), tasks);
  }
}

TEST(AssignedTask, BeginsAgainAfterTheLastTask) {
  for (std::uint64_t counter : {0, 1, 999}) {
    EXPECT_EQ(assigned_task(1, WorkerId("a"), counter, 1000), assigned_task(1, WorkerId("a"), counter + 1000, 1000));
  }
}

TEST(AssignedTask, DependsOnSeedAndWorker) {
  int equal_for_worker = 0;
  int equal_for_seed = 0;
  for (std::uint64_t counter = 0; counter < 200; ++counter) {
    const std::uint64_t task = assigned_task(1, WorkerId("a"), counter, 20000);
    equal_for_worker += task == assigned_task(1, WorkerId("b"), counter, 20000);
    equal_for_seed += task == assigned_task(2, WorkerId("a"), counter, 20000);
  }
  EXPECT_LT(equal_for_worker, 3);
  EXPECT_LT(equal_for_seed, 3);
}

TEST(AssignedTask, WorkersWalkOnePermutationFromTheirOwnStarts) {
  // The successor of a task is the same for everybody.
  std::vector<std::uint64_t> successor(500);
  for (std::uint64_t counter = 0; counter < 500; ++counter) {
    successor[assigned_task(9, WorkerId("a"), counter, 500)] = assigned_task(9, WorkerId("a"), counter + 1, 500);
  }
  for (std::uint64_t counter = 0; counter < 500; ++counter) {
    EXPECT_EQ(successor[assigned_task(9, WorkerId("b"), counter, 500)],
              assigned_task(9, WorkerId("b"), counter + 1, 500));
  }
}

TEST(AssignedTask, TakesTheLargestNumbers) {
  constexpr auto kMax = std::numeric_limits<std::uint64_t>::max();
  EXPECT_LT(assigned_task(kMax, WorkerId("a"), kMax, kMax), kMax);
  EXPECT_NE(assigned_task(1, WorkerId("a"), kMax - 1, kMax), assigned_task(1, WorkerId("a"), kMax - 2, kMax));
}

TEST(AssignedTask, StaysAsItIs) {
  EXPECT_EQ(assigned_task(1, WorkerId("worker"), 0, 20000), 3263u);
  EXPECT_EQ(assigned_task(1, WorkerId("worker"), 1, 20000), 7880u);
}

TEST(GroupIds, FollowFromTheAssignmentAndNothingElse) {
  const GroupIdentity base = make_test_group().identity;
  const auto changed = [&](const std::function<void(GroupIdentity&)>& change) {
    GroupIdentity identity = base;
    change(identity);
    return group_id(identity) != group_id(base);
  };
  EXPECT_TRUE(changed([](auto& i) { i.run = "owner/other"; }));
  EXPECT_TRUE(changed([](auto& i) { i.split = Split::kHeldOut; }));
  EXPECT_TRUE(changed([](auto& i) { i.task++; }));
  EXPECT_TRUE(changed([](auto& i) { i.attempt++; }));
  EXPECT_TRUE(changed([](auto& i) { i.worker = WorkerId("other"); }));
  EXPECT_TRUE(changed([](auto& i) { i.counter++; }));
  EXPECT_FALSE(changed([](auto& i) { i.backend = "cpu-scalar"; }));
  EXPECT_FALSE(changed([](auto& i) { i.operator_id = OperatorId("another"); }));
}

TEST(GroupIds, GiveTheirFirstDigitsToTheSampler) {
  EXPECT_EQ(sample_group(GroupId("0123456789abcdef0123456789abcdef")), 0x0123456789abcdefu);
  EXPECT_EQ(sample_group(GroupId("ffffffffffffffff0000000000000000")), std::numeric_limits<std::uint64_t>::max());
}

TEST(Groups, KnowTheirOldestVersion) {
  Group group = make_test_group();
  EXPECT_EQ(group.oldest_version(), Version(4));
  group.episodes.erase(group.episodes.begin());
  EXPECT_EQ(group.oldest_version(), Version(5));
}

TEST(CheckGroup, AcceptsAKeptContextThatTheSameVersionComputesAnew) {
  Group group = make_test_group();
  VersionSpan& kept = group.episodes[0].spans[1];
  VersionSpan anew = kept;
  kept.end = anew.begin = 8;
  anew.context = SpanContext::kNew;
  group.episodes[0].spans.push_back(anew);
  const Status status = check_group(group);
  EXPECT_TRUE(status.ok()) << status.to_string();
}

TEST(CheckGroup, AcceptsAWholeGroup) { EXPECT_TRUE(check_group(make_test_group()).ok()); }

struct BadGroup {
  const char* name;
  std::function<void(Group&)> spoil;
  const char* complaint;
};

class CheckGroupRefuses : public testing::TestWithParam<BadGroup> {};

TEST_P(CheckGroupRefuses, AndSaysWhy) {
  Group group = make_test_group();
  GetParam().spoil(group);
  const Status status = check_group(group);
  EXPECT_EQ(status.code(), StatusCode::kDataLoss);
  EXPECT_NE(status.message().find(GetParam().complaint), std::string::npos) << status.to_string();
}

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();
Episode& first(Group& g) { return g.episodes[0]; }

INSTANTIATE_TEST_SUITE_P(
    Everything, CheckGroupRefuses,
    testing::Values(
        BadGroup{"RunWithoutOwner", [](Group& g) { g.identity.run = "run"; }, "OWNER/RUN"},
        BadGroup{"RunWithEmptyOwner", [](Group& g) { g.identity.run = "/run"; }, "owner"},
        BadGroup{"RunWithThreeParts", [](Group& g) { g.identity.run = "a/b/c"; }, "run is no name"},
        BadGroup{"WorkerThatLeavesItsFolder", [](Group& g) { g.identity.worker = WorkerId(".."); }, "worker"},
        BadGroup{"OperatorWithSpaces", [](Group& g) { g.identity.operator_id = OperatorId("a b"); }, "operator"},
        BadGroup{"LongWorker", [](Group& g) { g.identity.worker = WorkerId(std::string(200, 'a')); }, "worker"},
        BadGroup{"NoBackend", [](Group& g) { g.identity.backend.clear(); }, "backend"},
        BadGroup{"NegativeArithmetic", [](Group& g) { g.identity.arithmetic = -1; }, "arithmetic"},
        BadGroup{"HugeMetadata", [](Group& g) { g.identity.task_metadata.resize(70000); }, "metadata"},
        BadGroup{"NanTemperature", [](Group& g) { g.identity.sampling.temperature = kNan; }, "temperature"},
        BadGroup{"NegativeTemperature", [](Group& g) { g.identity.sampling.temperature = -1; }, "temperature"},
        BadGroup{"NegativeTopK", [](Group& g) { g.identity.sampling.top_k = -1; }, "top_k"},
        BadGroup{"ZeroTopP", [](Group& g) { g.identity.sampling.top_p = 0; }, "top_p"},
        BadGroup{"LargeTopP", [](Group& g) { g.identity.sampling.top_p = 1.5f; }, "top_p"},
        BadGroup{"AnotherCounter", [](Group& g) { g.identity.counter++; }, "assignment"},
        BadGroup{"NoEpisodes", [](Group& g) { g.episodes.clear(); }, "0 episodes"},
        BadGroup{"NoPrompt", [](Group& g) { g.prompt_tokens = 0; }, "prompt of 0"},
        BadGroup{"NothingButPrompt", [](Group& g) { g.prompt_tokens = 9; }, "of which the prompt is 9"},
        BadGroup{"LongerPrompt", [](Group& g) { g.prompt_tokens = 4; }, "belongs to the prompt"},
        BadGroup{"ShorterPrompt", [](Group& g) { g.prompt_tokens = 2; }, "another source"},
        BadGroup{"MissingSource", [](Group& g) { first(g).sources.pop_back(); }, "8 sources"},
        BadGroup{"MissingLogprob", [](Group& g) { first(g).logprobs.pop_back(); }, "8 logprobs"},
        BadGroup{"UnknownSource", [](Group& g) { first(g).sources[4] = TokenSource{7}; }, "another source"},
        BadGroup{"ModelTokenCalledObservation", [](Group& g) { first(g).sources[3] = TokenSource::kEnvironment; },
                 "another source"},
        BadGroup{"ObservationCalledModel", [](Group& g) { first(g).sources[6] = TokenSource::kModel; },
                 "another source"},
        BadGroup{"NoTurns", [](Group& g) { first(g).turns.clear(); }, "no turn"},
        BadGroup{"TurnPastTheEnd", [](Group& g) { first(g).turns.back() = 10; }, "turn 1 ends at 10"},
        BadGroup{"TurnsOutOfOrder",
                 [](Group& g) {
                   first(g).turns = {9, 5};
                 },
                 "turn 0 ends at 9"},
        BadGroup{"TurnWithoutModelToken",
                 [](Group& g) {
                   first(g).turns = {5, 8, 9};
                 },
                 "turn 1 ends at 8"},
        BadGroup{"DroppedTurn", [](Group& g) { first(g).turns = {5}; }, "after the last turn"},
        BadGroup{"NoSpans", [](Group& g) { first(g).spans.clear(); }, "spans end at 3"},
        BadGroup{"GapBetweenSpans", [](Group& g) { first(g).spans[1].begin = 7; }, "span 1"},
        BadGroup{"EmptySpan", [](Group& g) { first(g).spans[0].end = 3; }, "span 0"},
        BadGroup{"SpanPastTheEnd", [](Group& g) { first(g).spans[1].end = 10; }, "spans end at 10"},
        BadGroup{"VersionThatFalls", [](Group& g) { first(g).spans[1].version = Version(3); }, "version 3 in a kept"},
        BadGroup{"VersionThatKeepsItsOwnContext", [](Group& g) { first(g).spans[1].version = Version(4); },
                 "version 4 in a kept context after 4 in a new one"},
        BadGroup{"VersionThatComputesItsOwnContextAnew",
                 [](Group& g) {
                   first(g).spans = {{3, 4, Version(4), sha256("four")}, {4, 9, Version(4), sha256("four")}};
                 },
                 "version 4 in a new context after 4 in a new one"},
        BadGroup{"FirstContextKept", [](Group& g) { first(g).spans[0].context = SpanContext::kKept; }, "span 0 keeps"},
        BadGroup{"NewContextInAnObservation", [](Group& g) { first(g).spans[1].context = SpanContext::kNew; },
                 "no model token"},
        BadGroup{"TwoStatesOfOneVersion", [](Group& g) { first(g).spans[1].state = sha256("other"); },
                 "two state digests"},
        BadGroup{"NegativeToken", [](Group& g) { first(g).tokens[3] = -1; }, "negative"},
        BadGroup{"NanLogprob", [](Group& g) { first(g).logprobs[3] = kNan; }, "not finite"},
        BadGroup{"InfiniteLogprob", [](Group& g) { first(g).logprobs[3] = -kInfinity; }, "not finite"},
        BadGroup{"PositiveLogprob", [](Group& g) { first(g).logprobs[3] = 0.01f; }, "not finite and at most 0"},
        BadGroup{"LogprobOfAnObservation", [](Group& g) { first(g).logprobs[5] = -1; }, "the model wrote nothing"},
        BadGroup{"NegativeZeroOfAnObservation", [](Group& g) { first(g).logprobs[5] = -0.0f; }, "wrote nothing"},
        BadGroup{"NanReward", [](Group& g) { first(g).reward = kNan; }, "reward"},
        BadGroup{"InfiniteMetric", [](Group& g) { first(g).metrics["searches"] = kInfinity; }, "searches"},
        BadGroup{"MetricWithoutName", [](Group& g) { first(g).metrics[""] = 1; }, "metric"},
        BadGroup{"ManyMetrics",
                 [](Group& g) {
                   for (int i = 0; i < 65; ++i) first(g).metrics[fmt::format("m{}", i)] = 0;
                 },
                 "metrics, at most"},
        BadGroup{"PromptOfItsOwn", [](Group& g) { g.episodes[1].tokens[0] = 9; }, "episode 1: a prompt of its own"}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace flotilla
