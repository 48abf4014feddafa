#include "rollout/episode_builder.h"

#include <gtest/gtest.h>

#include "rollout/toy_for_tests.h"

namespace flotilla {
namespace {

class EpisodeBuilderTest : public testing::Test {
 protected:
  Toy toy_;
  Task task_ = toy_.environment.task(Split::kTrain, 5).value();
  std::vector<TokenId> prompt_ = episode_prompt(*toy_.tokenizer, task_).value();

  EpisodeBuilder builder(std::uint64_t seed = 3) { return EpisodeBuilder(toy_.rules, task_, seed, prompt_); }
  static void take_all(EpisodeBuilder& builder, std::initializer_list<TokenId> tokens) {
    for (const TokenId token : tokens) ASSERT_TRUE(builder.take(token, -1).ok());
  }
};

TEST_F(EpisodeBuilderTest, BeginsWithTheChatPromptAndAnOpenTurn) {
  const std::string text = toy_.tokenizer->decode(prompt_, true);
  EXPECT_EQ(text.substr(0, 12), "<|im_start|>");
  EXPECT_NE(text.find("abc<|im_end|>"), std::string::npos);
  EXPECT_NE(text.find(task_.question + "<|im_end|>"), std::string::npos);
  EXPECT_EQ(builder().size(), std::ssize(prompt_));
}

TEST_F(EpisodeBuilderTest, KeepsTheTokenThatCompletesAStopStringWhole) {
  EpisodeBuilder episode = builder();
  take_all(episode, {kToyC, kToyAskA});
  ASSERT_EQ(episode.episode().turns.size(), 1u);
  EXPECT_EQ(actions_of(episode.episode(), *toy_.tokenizer), (std::vector<std::string>{"c?a"}));
}

TEST_F(EpisodeBuilderTest, FindsAStopStringAcrossTokens) {
  EpisodeBuilder episode = builder();
  take_all(episode, {kToyA});
  EXPECT_TRUE(episode.episode().turns.empty());
  take_all(episode, {kToyB});
  EXPECT_EQ(episode.episode().turns.size(), 1u);
}

TEST_F(EpisodeBuilderTest, DoesNotFindAStopStringAcrossTurns) {
  EpisodeBuilder episode = builder();
  take_all(episode, {kToyA, kToyTurnEnd, kToyB});
  EXPECT_EQ(episode.episode().turns.size(), 1u);
}

TEST_F(EpisodeBuilderTest, EndsATurnAtAStopId) {
  for (const TokenId stop : {kToyTurnEnd, kToyEos}) {
    EpisodeBuilder episode = builder();
    take_all(episode, {kToyC, stop});
    EXPECT_EQ(actions_of(episode.episode(), *toy_.tokenizer), (std::vector<std::string>{"c"}));
  }
}

TEST_F(EpisodeBuilderTest, AppendsTheObservationAsTextThatCannotForgeARole) {
  EpisodeBuilder episode = builder();
  take_all(episode, {kToyAsk});
  const Episode& e = episode.episode();
  const std::int32_t turn_end = e.turns.at(0);
  ASSERT_GT(std::ssize(e.tokens), turn_end);
  for (std::size_t i = turn_end; i < e.tokens.size(); ++i) {
    EXPECT_EQ(e.sources[i], TokenSource::kEnvironment);
    EXPECT_NE(e.tokens[i], kToyTurnEnd);
    EXPECT_EQ(e.logprobs[i], 0);
  }
}

TEST_F(EpisodeBuilderTest, CutsALongObservation) {
  toy_.environment.limits_.observation_tokens = 2;
  EpisodeBuilder episode = builder();
  take_all(episode, {kToyAsk});
  EXPECT_EQ(std::ssize(episode.episode().tokens), std::ssize(prompt_) + 1 + 2);
}

TEST_F(EpisodeBuilderTest, GoesOnAtOnceAfterAnEmptyObservation) {
  EpisodeBuilder episode = builder();
  take_all(episode, {kToyA, kToyB, kToyA, kToyAnswer});
  ASSERT_TRUE(episode.ended());
  const auto size = static_cast<std::int32_t>(prompt_.size());
  EXPECT_EQ(episode.episode().turns, (std::vector<std::int32_t>{size + 2, size + 4}));
  EXPECT_EQ(episode.episode().end, EpisodeEnd::kDone);
  EXPECT_EQ(episode.episode().reward, 1);
}

TEST_F(EpisodeBuilderTest, RewardsTheModelsOwnTextOnly) {
  EpisodeBuilder episode = builder();
  take_all(episode, {kToyA, kToyAsk, kToyC, kToyAnswer});
  ASSERT_TRUE(episode.ended());
  EXPECT_EQ(episode.episode().reward, 0);
  EXPECT_EQ(episode.episode().metrics.at("asked"), 1);
}

TEST_F(EpisodeBuilderTest, EndsWithTheLastTurn) {
  EpisodeBuilder episode = builder();
  take_all(episode, {kToyAsk, kToyAsk, kToyAsk});
  EXPECT_FALSE(episode.ended());
  take_all(episode, {kToyAsk});
  ASSERT_TRUE(episode.ended());
  EXPECT_EQ(episode.episode().end, EpisodeEnd::kTurnLimit);
  EXPECT_EQ(episode.episode().turns.back(), episode.size());
}

TEST_F(EpisodeBuilderTest, EndsInTheMiddleOfATurnWhenTheTokensRunOut) {
  toy_.environment.limits_.model_tokens = 3;
  EpisodeBuilder episode = builder();
  take_all(episode, {kToyAsk, kToyC, kToyC});
  ASSERT_TRUE(episode.ended());
  EXPECT_EQ(episode.episode().end, EpisodeEnd::kTokenLimit);
  EXPECT_EQ(actions_of(episode.episode(), *toy_.tokenizer), (std::vector<std::string>{"?", "cc"}));
}

TEST_F(EpisodeBuilderTest, EndsBetweenTurnsWhenTheTokensRunOut) {
  toy_.environment.limits_.model_tokens = 1;
  EpisodeBuilder episode = builder();
  take_all(episode, {kToyAsk});
  ASSERT_TRUE(episode.ended());
  EXPECT_EQ(episode.episode().end, EpisodeEnd::kTokenLimit);
  EXPECT_EQ(episode.episode().turns.back(), episode.size());
}

TEST_F(EpisodeBuilderTest, IsDoneWhenTheLastTokenAnswers) {
  toy_.environment.limits_.model_tokens = 2;
  EpisodeBuilder episode = builder();
  take_all(episode, {kToyA, kToyAnswer});
  EXPECT_EQ(episode.episode().end, EpisodeEnd::kDone);
}

TEST_F(EpisodeBuilderTest, EndsWhenTheContextIsFull) {
  toy_.rules.context = static_cast<std::int32_t>(prompt_.size()) + 2;
  EpisodeBuilder episode = builder();
  take_all(episode, {kToyC});
  EXPECT_FALSE(episode.ended());
  take_all(episode, {kToyC});
  ASSERT_TRUE(episode.ended());
  EXPECT_EQ(episode.episode().end, EpisodeEnd::kContext);
  EXPECT_EQ(episode.size(), toy_.rules.context);
}

TEST_F(EpisodeBuilderTest, LeavesOutAnObservationThatWouldFillTheContext) {
  EpisodeBuilder roomy = builder();
  take_all(roomy, {kToyAsk});
  const std::int32_t size_with_observation = roomy.size();
  toy_.rules.context = size_with_observation;
  EpisodeBuilder tight = builder();
  take_all(tight, {kToyAsk});
  ASSERT_TRUE(tight.ended());
  EXPECT_EQ(tight.episode().end, EpisodeEnd::kContext);
  EXPECT_EQ(tight.size(), std::ssize(prompt_) + 1);
  toy_.rules.context = size_with_observation + 1;
  EpisodeBuilder just_enough = builder();
  take_all(just_enough, {kToyAsk});
  EXPECT_FALSE(just_enough.ended());
}

TEST_F(EpisodeBuilderTest, PassesOnTheEnvironmentsError) {
  toy_.environment.broken_ = true;
  EpisodeBuilder episode = builder();
  EXPECT_EQ(episode.take(kToyAsk, -1).code(), StatusCode::kInternal);
}

TEST_F(EpisodeBuilderTest, MakesTheEpisodeOfADemonstration) {
  const std::vector<std::string> turns = {"c?", "a!"};
  const auto episode = demonstration_episode(toy_.rules, task_, 3, turns);
  ASSERT_TRUE(episode.ok()) << episode.status().to_string();
  EXPECT_EQ(actions_of(*episode, *toy_.tokenizer), turns);
  EXPECT_EQ(episode->reward, 1);
  EpisodeBuilder by_hand = builder();
  take_all(by_hand, {kToyC, kToyAsk, kToyA, kToyAnswer});
  EXPECT_EQ(episode->tokens, by_hand.episode().tokens);
}

TEST_F(EpisodeBuilderTest, RefusesDemonstrationsThatDoNotEndWhereTheySay) {
  const auto complaint = [&](std::vector<std::string> turns) {
    return demonstration_episode(toy_.rules, task_, 3, turns).status().message();
  };
  EXPECT_NE(complaint({"c", "a!"}).find("turn 0 does not end"), std::string::npos);
  EXPECT_NE(complaint({"c? c", "a!"}).find("turn 0 goes on after its end"), std::string::npos);
  EXPECT_NE(complaint({"c?"}).find("does not end its episode"), std::string::npos);
  EXPECT_NE(complaint({"a!", "a!"}).find("turn 1 goes on"), std::string::npos);
}

TEST_F(EpisodeBuilderTest, ShowsTextWithoutThePromptAndWithoutBrokenCharacters) {
  EpisodeBuilder episode = builder();
  take_all(episode, {kToyA, kToyAnswer});
  EXPECT_EQ(episode_text(episode.episode(), *toy_.tokenizer), "a!");
}

TEST(EpisodeRules, RefuseATokenizerThatTheModelCannotHave) {
  const ToyEnvironment environment;
  const auto tokenizer = toy_tokenizer();
  ModelDescription model = toy_model().description;
  model.vocabulary = 19;
  EXPECT_EQ(make_episode_rules(environment, *tokenizer, model).status().code(), StatusCode::kInvalidArgument);
}

TEST(EpisodeRules, RefuseLimitsWithoutRoomForATurn) {
  ToyEnvironment environment;
  const auto tokenizer = toy_tokenizer();
  environment.limits_.turns = 0;
  EXPECT_FALSE(make_episode_rules(environment, *tokenizer, toy_model().description).ok());
  environment.limits_ = {.model_tokens = 0, .turns = 1, .observation_tokens = 1};
  EXPECT_FALSE(make_episode_rules(environment, *tokenizer, toy_model().description).ok());
}

TEST(EnvironmentSeed, DiffersByRunGroupAndEpisode) {
  const std::uint64_t seed = environment_seed(1, 2, 3);
  EXPECT_NE(seed, environment_seed(2, 2, 3));
  EXPECT_NE(seed, environment_seed(1, 3, 3));
  EXPECT_NE(seed, environment_seed(1, 2, 4));
}

}  // namespace
}  // namespace flotilla
