#include "rollout/verify.h"

#include <gtest/gtest.h>

#include <bit>

#include "rollout/run_for_tests.h"
#include "rollout/sweep.h"
#include "rollout/watched_engine_for_tests.h"

namespace flotilla {
namespace {

// An honest group of version 0, and one whose episodes go over from version 0 to version 1 after a few tokens.
class HonestRun {
 public:
  HonestRun() : assets_(prepare()), engine_(toy_engine(64)) {
    for (const std::uint64_t v : {0, 1}) states_.push_back(subscriber_->fetch(Version(v)).value());
  }

  GroupVerifier verifier() {
    return GroupVerifier(assets_, *engine_, [this](Version version) { return subscriber_->fetch(version); });
  }

  Group plain(std::size_t version = 0) {
    Group group = begin();
    FLOTILLA_CHECK(engine_->load(*states_[version].state).ok());
    const SweepItem item{task(group), sample_group(group.identity.group), assets_.spec.group_size};
    const SweepSettings settings{.seed = assets_.spec.seed,
                                 .sampling = group.identity.sampling,
                                 .version = Version(version),
                                 .state = states_[version].state_digest};
    const auto keep = [&](FinishedGroup finished) {
      group.prompt_tokens = finished.prompt_tokens;
      group.episodes = std::move(finished.episodes);
      return ok_status();
    };
    FLOTILLA_CHECK(run_sweep(*engine_, assets_.rules, settings, {&item, 1}, {.on_group = keep}).ok());
    return group;
  }

  // The weights change when the first episode has sampled a token, which it keeps; the others begin with version 1.
  Group of_kept_and_new_contexts() {
    Group group = begin();
    FLOTILLA_CHECK(engine_->load(*states_[0].state).ok());
    const SweepItem item{task(group), sample_group(group.identity.group), assets_.spec.group_size};
    const SweepSettings settings{.seed = assets_.spec.seed,
                                 .sampling = group.identity.sampling,
                                 .version = Version(0),
                                 .state = states_[0].state_digest,
                                 .kv = KvAfterSwap::kKeep,
                                 .rows_per_call = 1};
    const auto prompt = episode_prompt(*assets_.tokenizer, item.task).value();
    const std::int64_t change = engine_->usage().tokens_computed + std::ssize(prompt);
    const SweepHooks hooks{.on_group =
                               [&](FinishedGroup finished) {
                                 group.prompt_tokens = finished.prompt_tokens;
                                 group.episodes = std::move(finished.episodes);
                                 return ok_status();
                               },
                           .newer = [&]() -> std::optional<NextVersion> {
                             if (engine_->usage().tokens_computed != change) return std::nullopt;
                             return as_next(states_[1]);
                           }};
    FLOTILLA_CHECK(run_sweep(*engine_, assets_.rules, settings, {&item, 1}, hooks).ok());
    return group;
  }

  Group of_two_versions() {
    Group group = begin();
    const Task task = this->task(group);
    const auto prompt = episode_prompt(*assets_.tokenizer, task).value();
    group.prompt_tokens = static_cast<std::int32_t>(prompt.size());
    const std::int32_t change = group.prompt_tokens + 3;
    const std::uint64_t key = sample_group(group.identity.group);
    for (std::uint32_t e = 0; e < static_cast<std::uint32_t>(assets_.spec.group_size); ++e) {
      EpisodeBuilder builder(assets_.rules, task, environment_seed(assets_.spec.seed, key, e), prompt);
      std::int32_t first_late = 0;  // token of version 1
      while (!builder.ended()) {
        const bool late = builder.size() >= change;
        if (late && first_late == 0) first_late = builder.size();
        FLOTILLA_CHECK(engine_->load(*states_[late ? 1 : 0].state).ok());
        const SequenceId sequence = engine_->open().value();
        const std::vector<TokenId> tokens = builder.episode().tokens;
        const Readout readout{.offset = builder.size() - 1,
                              .sampling = group.identity.sampling,
                              .key = {assets_.spec.seed, key, e, static_cast<std::uint32_t>(builder.size())},
                              .target = std::nullopt};
        const Chunk chunk{sequence, tokens, {&readout, 1}};
        const auto result = engine_->forward({&chunk, 1}).value();
        engine_->close(sequence);
        FLOTILLA_CHECK(builder.take(result[0].token, result[0].logprob).ok());
      }
      const std::int32_t size = builder.size();
      Episode episode = std::move(builder).finish();
      const std::int32_t early_end = first_late > 0 ? first_late : size;
      episode.spans = {{group.prompt_tokens, early_end, Version(0), states_[0].state_digest}};
      if (first_late > 0) episode.spans.push_back({first_late, size, Version(1), states_[1].state_digest});
      group.episodes.push_back(std::move(episode));
    }
    return group;
  }

  const RunAssets& assets() const { return assets_; }
  const PulledVersion& state(std::size_t version) const { return states_[version]; }

 private:
  RunAssets prepare() {
    run_.publish();
    run_.publish();
    subscriber_ = Subscriber::create(*run_.store, run_.layout, toy_model().description, run_.learner->public_key(),
                                     null_event_sink());
    return run_.assets().value();
  }

  Group begin() const {
    Group group;
    GroupIdentity& identity = group.identity;
    identity.run = assets_.spec.run;
    identity.seed = assets_.spec.seed;
    identity.operator_id = OperatorId("someone");
    identity.worker = WorkerId("0123456789abcdef0123456789abcdef");
    identity.counter = 5;
    identity.task = assigned_task(identity.seed, identity.worker, 5, 1000);
    identity.backend = "cpu-avx2";
    identity.tokenizer = assets_.tokenizer->digest();
    identity.environment = assets_.environment->digest();
    identity.corpus = assets_.spec.environment;
    identity.group = group_id(identity);
    return group;
  }
  Task task(const Group& group) const { return assets_.environment->task(Split::kTrain, group.identity.task).value(); }

  ToyRun run_{[](RunSpec& spec) { spec.swap = WeightSwap::kKeep; }};
  std::unique_ptr<Subscriber> subscriber_;
  RunAssets assets_;
  std::unique_ptr<Engine> engine_;
  std::vector<PulledVersion> states_;
};

HonestRun& honest() {
  static HonestRun run;
  return run;
}

const Group& honest_group() {
  static const Group group = honest().of_two_versions();
  return group;
}

TEST(Verify, AcceptsAnHonestGroup) {
  const Group group = honest().plain();
  const auto report = honest().verifier().verify(group);
  ASSERT_TRUE(report.ok()) << report.status().to_string();
  EXPECT_EQ(report->episodes, 3);
  EXPECT_GT(report->model_tokens, 0);
  EXPECT_EQ(report->versions, 1);
}

TEST(Verify, AcceptsEpisodesWhoseVersionChangedMidway) {
  const auto report = honest().verifier().verify(honest_group());
  ASSERT_TRUE(report.ok()) << report.status().to_string();
  EXPECT_EQ(report->versions, 2);
  EXPECT_GT(report->environment_tokens, 0);
}

TEST(Verify, AcceptsAnotherOperatorAndMetadata) {
  Group group = honest_group();
  group.identity.operator_id = OperatorId("else");
  group.identity.task_metadata = "anything";
  EXPECT_TRUE(honest().verifier().verify(group).ok());
}

struct Change {
  const char* name;
  std::function<void(Group&)> make;
  const char* complaint;
};

class VerifyRefuses : public testing::TestWithParam<Change> {};

TEST_P(VerifyRefuses, AndNamesTheFirstDifference) {
  Group group = honest_group();
  GetParam().make(group);
  const auto report = honest().verifier().verify(group);
  ASSERT_FALSE(report.ok());
  EXPECT_EQ(report.status().code(), StatusCode::kInvalidArgument) << report.status().to_string();
  EXPECT_NE(report.status().message().find(GetParam().complaint), std::string::npos) << report.status().to_string();
}

// An episode with more than one turn and an observation between them, and where the observation begins.
Episode& with_observation(Group& group) {
  for (Episode& episode : group.episodes) {
    if (std::ranges::count(episode.sources, TokenSource::kEnvironment) > 1) return episode;
  }
  check_failed(__FILE__, __LINE__, "no episode has an observation");
}
std::size_t observation(const Episode& episode) {
  return static_cast<std::size_t>(std::ranges::find(episode.sources, TokenSource::kEnvironment) -
                                  episode.sources.begin());
}
void renew_id(Group& group) { group.identity.group = group_id(group.identity); }
void flip_bit(float& value, int bit) {
  value = std::bit_cast<float>(std::bit_cast<std::uint32_t>(value) ^ (1u << bit));
}

// Takes the last turn away, as if the episode had ended before.
void drop_turn(Group& group) {
  Episode& episode = with_observation(group);
  const std::int32_t size = episode.turns[episode.turns.size() - 2];
  episode.turns.pop_back();
  episode.tokens.resize(size);
  episode.sources.resize(size);
  episode.logprobs.resize(size);
  while (episode.spans.back().begin >= size) episode.spans.pop_back();
  episode.spans.back().end = size;
}

void add_turn(Group& group) {
  Episode& episode = group.episodes[0];
  episode.tokens.push_back(kToyAnswer);
  episode.sources.push_back(TokenSource::kModel);
  episode.logprobs.push_back(-1);
  episode.turns.push_back(static_cast<std::int32_t>(episode.tokens.size()));
  episode.spans.back().end = episode.turns.back();
}

INSTANTIATE_TEST_SUITE_P(
    EveryField, VerifyRefuses,
    testing::Values(
        Change{"BrokenGroup", [](Group& g) { g.episodes[0].turns.clear(); }, "no turn"},
        Change{"Run", [](Group& g) { g.identity.run = "owner/other", renew_id(g); }, "run is owner/other"},
        Change{"Seed", [](Group& g) { g.identity.seed = 98; }, "seed is 98, the replay gives 99"},
        Change{"Arithmetic", [](Group& g) { g.identity.arithmetic = 2; }, "arithmetic"},
        Change{"Tokenizer", [](Group& g) { g.identity.tokenizer = sha256("x"); }, "tokenizer"},
        Change{"Environment", [](Group& g) { g.identity.environment = sha256("x"); }, "environment"},
        Change{"Corpus", [](Group& g) { g.identity.corpus = sha256("x"); }, "corpus"},
        Change{"Temperature", [](Group& g) { g.identity.sampling.temperature = 0.5f; }, "temperature"},
        Change{"TopK", [](Group& g) { g.identity.sampling.top_k = 3; }, "top_k"},
        Change{"TopP", [](Group& g) { g.identity.sampling.top_p = 0.5f; }, "top_p"},
        Change{"MissingEpisode", [](Group& g) { g.episodes.pop_back(); }, "number of episodes is 2"},
        Change{"EpisodeTwice", [](Group& g) { g.episodes[1] = g.episodes[0]; }, "episode 1"},
        Change{"EpisodesSwapped", [](Group& g) { std::swap(g.episodes[0], g.episodes[1]); }, "episode 0"},
        Change{"Split", [](Group& g) { g.identity.split = Split::kHeldOut, renew_id(g); }, "split"},
        Change{"Attempt", [](Group& g) { g.identity.attempt = 1, renew_id(g); }, "attempt"},
        Change{"Task", [](Group& g) { g.identity.task ^= 1, renew_id(g); }, "task"},
        Change{"Counter", [](Group& g) { g.identity.counter++, renew_id(g); }, "task"},
        Change{"CounterOfTheSameTask", [](Group& g) { g.identity.counter += 1000, renew_id(g); }, "episode 0"},
        Change{"Worker", [](Group& g) { g.identity.worker = WorkerId("other"), renew_id(g); }, "task"},
        Change{"Prompt",
               [](Group& g) {
                 for (Episode& e : g.episodes) e.tokens[1] ^= 1;
               },
               "token 1 of the prompt"},
        Change{"PromptShorter",
               [](Group& g) {
                 --g.prompt_tokens;
                 for (Episode& e : g.episodes) {
                   e.tokens.erase(e.tokens.begin());
                   e.sources.erase(e.sources.begin());
                   e.logprobs.erase(e.logprobs.begin());
                   for (auto& turn : e.turns) --turn;
                   for (auto& span : e.spans) --span.begin, --span.end;
                 }
               },
               "the prompt's length"},
        Change{"ModelToken", [](Group& g) { g.episodes[0].tokens[g.prompt_tokens] ^= 1; }, "episode 0"},
        Change{"TokenPastTheVocabulary", [](Group& g) { g.episodes[0].tokens[g.prompt_tokens] = 20; }, "episode 0"},
        Change{"LastBitOfALogprob", [](Group& g) { flip_bit(g.episodes[1].logprobs[g.prompt_tokens], 0); },
               "episode 1, position"},
        Change{"LogprobOfTheLastToken", [](Group& g) { flip_bit(g.episodes[2].logprobs.back(), 3); }, "logprob"},
        Change{"ObservationToken",
               [](Group& g) {
                 Episode& e = with_observation(g);
                 e.tokens[observation(e)] ^= 1;
               },
               "(environment), the replay gives"},
        Change{"Reward", [](Group& g) { g.episodes[0].reward = 1 - g.episodes[0].reward; }, "episode 0: reward"},
        Change{"Metric", [](Group& g) { g.episodes[2].metrics["asked"] += 1; }, "episode 2: metric asked"},
        Change{"MissingMetric", [](Group& g) { g.episodes[0].metrics.clear(); }, "the number of metrics"},
        Change{"RenamedMetric",
               [](Group& g) {
                 g.episodes[0].metrics = {{"told", 0}};
               },
               "metric asked is missing"},
        Change{"End", [](Group& g) { g.episodes[0].end = EpisodeEnd::kContext; }, "what ended it"},
        Change{"DroppedTurn", drop_turn, "the recording ends"}, Change{"AddedTurn", add_turn, "the replay ended"},
        Change{"StateDigest",
               [](Group& g) {
                 for (Episode& e : g.episodes) e.spans[0].state = sha256("x");
               },
               "the state digest of version 0"},
        Change{"WholeVersion",
               [](Group& g) {
                 for (Episode& e : g.episodes) {
                   e.spans = {{e.spans.front().begin, e.spans.back().end, Version(1), honest().state(1).state_digest}};
                 }
               },
               "version 1"},
        Change{"SpanThatBeginsATokenEarlier",
               [](Group& g) {
                 for (Episode& e : g.episodes) {
                   if (e.spans.size() < 2) continue;
                   std::int32_t& begin = e.spans[1].begin;
                   do --begin;
                   while (e.sources[begin] != TokenSource::kModel);
                   e.spans[0].end = begin;
                 }
               },
               "position"},
        Change{"ContextCalledKept",
               [](Group& g) {
                 for (Episode& e : g.episodes) {
                   if (e.spans.size() == 2) e.spans[1].context = SpanContext::kKept;
                 }
               },
               "version 1"}),
    [](const auto& info) { return info.param.name; });

TEST(Verify, TellsSeveralGroupsApart) {
  std::vector<Group> groups = {honest().plain(), honest_group(), honest().plain(), honest_group(), honest_group()};
  flip_bit(groups[2].episodes[1].logprobs[groups[2].prompt_tokens], 0);
  groups[3].identity.arithmetic = kApproximate;
  for (Episode& episode : groups[4].episodes) {
    for (VersionSpan& span : episode.spans) span.version = Version(span.version.value() + 7);
  }
  const auto results = honest().verifier().verify(groups);
  ASSERT_EQ(results.size(), 5u);
  EXPECT_TRUE(results[0].ok()) << results[0].status().to_string();
  EXPECT_TRUE(results[1].ok()) << results[1].status().to_string();
  EXPECT_EQ(results[1]->versions, 2);
  EXPECT_EQ(results[2].status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(results[3].status().code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(results[4].status().code(), StatusCode::kNotFound);
  EXPECT_TRUE(honest().verifier().verify(std::span<const Group>()).empty());
}

// One group of a call may hold tokens that the engine cannot go on with.
TEST(Verify, TriesGroupsAloneAfterACallThatFailed) {
  const std::vector<Group> groups = {honest().plain(), honest_group()};
  WatchedEngine engine(64);
  int failed = 0;
  engine.before_forward = [&](std::span<const Chunk> chunks) {
    const bool of_both = chunks.size() > groups[0].episodes.size();
    failed += of_both;
    return of_both ? data_loss("layer 3: NaN") : ok_status();
  };
  GroupVerifier verifier(honest().assets(), engine, [](Version version) { return honest().state(version.value()); });
  for (const auto& result : verifier.verify(groups)) EXPECT_TRUE(result.ok()) << result.status().to_string();
  EXPECT_EQ(failed, 1);
  engine.before_forward = [](std::span<const Chunk>) { return data_loss("layer 3: NaN"); };
  for (const auto& result : verifier.verify(groups)) EXPECT_EQ(result.status().code(), StatusCode::kDataLoss);
  EXPECT_EQ(engine.usage().sequences, 0);
}

// The call begins and ends with episodes of one group, with another's between: those whose context began with an older
// version come first.
TEST(Verify, TriesAGroupAgainWhoseEpisodesLieAroundThoseOfAnother) {
  const Group around = honest().of_kept_and_new_contexts();
  ASSERT_EQ(around.episodes.front().spans.size(), 2u);
  ASSERT_EQ(around.episodes.front().spans[1].context, SpanContext::kKept);
  ASSERT_EQ(around.episodes.back().spans.front().version, Version(1));
  const std::vector<Group> groups = {honest().plain(1), around};
  WatchedEngine engine(200);
  int failed = 0;
  engine.before_forward = [&](std::span<const Chunk> chunks) {
    const bool of_both = chunks.size() > groups[1].episodes.size();
    failed += of_both;
    return of_both ? data_loss("layer 3: NaN") : ok_status();
  };
  GroupVerifier verifier(honest().assets(), engine, [](Version version) { return honest().state(version.value()); });
  for (const auto& result : verifier.verify(groups)) EXPECT_TRUE(result.ok()) << result.status().to_string();
  EXPECT_EQ(failed, 1);
}

TEST(Verify, GoesGroupByGroupThroughASmallPool) {
  std::vector<Group> groups(4, honest().plain());
  groups.push_back(honest_group());
  WatchedEngine engine(9);
  GroupVerifier verifier(honest().assets(), engine, [](Version version) { return honest().state(version.value()); });
  for (const auto& result : verifier.verify(groups)) EXPECT_TRUE(result.ok()) << result.status().to_string();
  EXPECT_EQ(engine.usage().blocks_used, 0);
}

// Its worker could try moment after moment for the samples that it likes.
TEST(Verify, RefusesVersionsThatChangeOtherwiseThanTheRunHasIt) {
  const auto refusal = [](WeightSwap swap, const Group& group) {
    const RunAssets assets = ToyRun([&](RunSpec& spec) { spec.swap = swap; }).assets().value();
    const auto engine = toy_engine(64);
    GroupVerifier verifier(assets, *engine, [](Version version) { return honest().state(version.value()); });
    const Status status = verifier.verify(group).status();
    EXPECT_TRUE(status.ok() || status.code() == StatusCode::kInvalidArgument) << status.to_string();
    return std::string(status.message());
  };
  EXPECT_NE(refusal(WeightSwap::kDrain, honest_group()).find("a group of this run is of one version"),
            std::string::npos);
  EXPECT_EQ(refusal(WeightSwap::kRecompute, honest_group()), "");
  Group kept = honest_group();
  for (Episode& episode : kept.episodes) {
    if (episode.spans.size() == 2) episode.spans[1].context = SpanContext::kKept;
  }
  EXPECT_NE(refusal(WeightSwap::kRecompute, kept).find("this run computes them again"), std::string::npos);
}

TEST(Verify, CannotTellAboutAnApproximateBackend) {
  Group group = honest_group();
  group.identity.arithmetic = kApproximate;
  EXPECT_EQ(honest().verifier().verify(group).status().code(), StatusCode::kFailedPrecondition);
}

TEST(Verify, CannotTellAboutAVersionThatIsNotThere) {
  Group group = honest_group();
  for (Episode& episode : group.episodes) {
    for (VersionSpan& span : episode.spans) {
      if (span.version == Version(1)) span.version = Version(7);
    }
  }
  EXPECT_EQ(honest().verifier().verify(group).status().code(), StatusCode::kNotFound);
}

TEST(Verify, TrustsNoErrorOfTheWeightsAsARefusal) {
  const auto assets = ToyRun().assets().value();
  const auto engine = toy_engine(64);
  GroupVerifier verifier(assets, *engine, [](Version) -> Result<PulledVersion> { return invalid_argument("odd"); });
  EXPECT_EQ(verifier.verify(honest().plain()).status().code(), StatusCode::kInternal);
}

}  // namespace
}  // namespace flotilla
