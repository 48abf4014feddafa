#include "serve/text_stream.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/philox.h"
#include "model/test_models.h"
#include "rollout/toy_for_tests.h"

namespace flotilla {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

std::vector<TokenId> ids_of(const std::vector<ScoredToken>& tokens) {
  std::vector<TokenId> ids;
  for (const ScoredToken& token : tokens) ids.push_back(token.token);
  return ids;
}

TEST(TextStream, WithoutStopStringsEachTokenLeavesAtOnce) {
  const auto tokenizer = toy_tokenizer();
  TextStream stream(*tokenizer, {});
  EXPECT_EQ(stream.push({.token = kToyA}).text, "a");
  const auto piece = stream.push({.token = kToyAskA, .logprob = -1.5f});
  EXPECT_EQ(piece.text, "?a");
  ASSERT_EQ(piece.tokens.size(), 1u);
  EXPECT_EQ(piece.tokens[0].logprob, -1.5f);
  EXPECT_EQ(stream.finish().text, "");
}

TEST(TextStream, WhatCouldBecomeAStopStringIsHeldBackUntilItIsNone) {
  const auto tokenizer = toy_tokenizer();
  TextStream stream(*tokenizer, {"abc"});
  EXPECT_EQ(stream.push({.token = kToyA}).text, "");
  EXPECT_EQ(stream.push({.token = kToyB}).text, "");
  const auto piece = stream.push({.token = kToyA});
  EXPECT_EQ(piece.text, "ab") << "the second a may begin a stop string";
  EXPECT_THAT(ids_of(piece.tokens), ElementsAre(kToyA, kToyB));
  EXPECT_EQ(stream.finish().text, "a");
}

TEST(TextStream, AStopStringOverSeveralTokensCutsTheTextBeforeIt) {
  const auto tokenizer = toy_tokenizer();
  TextStream stream(*tokenizer, {"zzz", "a?a"});
  EXPECT_EQ(stream.push({.token = kToyC}).text, "c");
  EXPECT_EQ(stream.push({.token = kToyA}).text, "");
  const auto piece = stream.push({.token = kToyAskA});
  EXPECT_TRUE(piece.stopped);
  EXPECT_EQ(piece.text, "");
  EXPECT_THAT(piece.tokens, IsEmpty());
  EXPECT_EQ(stream.finish().text, "") << "nothing may follow";
}

TEST(TextStream, ATokenThatBeginsBeforeTheStopStringIsReported) {
  const auto tokenizer = toy_tokenizer();
  TextStream stream(*tokenizer, {"ab"});
  EXPECT_EQ(stream.push({.token = kToyAskA}).text, "") << "whole tokens only";
  const auto piece = stream.push({.token = kToyB});
  EXPECT_TRUE(piece.stopped);
  EXPECT_EQ(piece.text, "?");
  EXPECT_THAT(ids_of(piece.tokens), ElementsAre(kToyAskA));
}

TEST(TextStream, OfTwoStopStringsTheOneThatBeginsFirstCuts) {
  const auto tokenizer = toy_tokenizer();
  TextStream stream(*tokenizer, {"a", "b?"});
  EXPECT_EQ(stream.push({.token = kToyB}).text, "");
  const auto piece = stream.push({.token = kToyAskA});
  EXPECT_TRUE(piece.stopped);
  EXPECT_EQ(piece.text, "");
}

TEST(TextStream, ACharacterOfSeveralTokensLeavesWhole) {
  const auto tokenizer = Tokenizer::create(tiny_tokenizer_spec()).value();
  TextStream stream(*tokenizer, {});
  const auto ids = tokenizer->encode("é");
  ASSERT_EQ(ids.size(), 2u);
  EXPECT_EQ(stream.push({.token = ids[0]}).text, "");
  const auto piece = stream.push({.token = ids[1]});
  EXPECT_EQ(piece.text, "é");
  EXPECT_THAT(ids_of(piece.tokens), ElementsAre(ids[0], ids[1]));
  EXPECT_EQ(stream.push({.token = ids[0]}).text, "");
  EXPECT_EQ(stream.finish().text, "\xC3") << "unfinished at the end: as it is";
}

TEST(TextStream, RandomTokensGiveTheTextBeforeTheFirstStopStringWhateverThePieces) {
  const auto tokenizer = toy_tokenizer();
  for (std::uint64_t seed = 0; seed < 2000; ++seed) {
    PhiloxStream random(seed, 0);
    const auto below = [&](std::uint32_t n) { return random.next_u32() % n; };
    std::vector<std::string> stops(below(4));
    for (std::string& stop : stops) {
      for (std::uint32_t i = 0; i <= below(4); ++i) stop += "ab?"[below(3)];
    }
    TextStream stream(*tokenizer, stops);
    std::string decoded, streamed;
    std::vector<TokenId> pushed, reported;
    bool stopped = false;
    for (int i = 0; i < 30 && !stopped; ++i) {
      const TokenId choices[] = {kToyA, kToyB, kToyAsk, kToyAskA, kToyC, 1};
      pushed.push_back(choices[below(below(4) == 0 ? 6 : 4)]);
      decoded += tokenizer->token_bytes(pushed.back());
      const auto piece = stream.push({.token = pushed.back()});
      streamed += piece.text;
      for (const ScoredToken& token : piece.tokens) reported.push_back(token.token);
      stopped = piece.stopped;
      std::size_t first = std::string::npos;
      for (const std::string& stop : stops) first = std::min(first, decoded.find(stop));
      ASSERT_EQ(stopped, first != std::string::npos) << "seed " << seed;
      if (stopped) decoded.resize(first);
      ASSERT_TRUE(decoded.starts_with(streamed)) << "seed " << seed;
    }
    streamed += stream.finish().text;
    EXPECT_EQ(streamed, decoded) << "seed " << seed;
    ASSERT_LE(reported.size(), pushed.size());
    EXPECT_TRUE(std::equal(reported.begin(), reported.end(), pushed.begin())) << "seed " << seed;
  }
}

}  // namespace
}  // namespace flotilla
