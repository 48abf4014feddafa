#include "serve/conversation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "model/chat.h"
#include "rollout/toy_for_tests.h"

namespace flotilla {
namespace {

using testing::HasSubstr;

constexpr auto kNeverStop = [] { return false; };

struct Talk {
  std::shared_ptr<const Tokenizer> tokenizer = toy_tokenizer();
  std::unique_ptr<Engine> engine;
  Conversation conversation;

  explicit Talk(ConversationOptions options, std::int64_t kv_blocks = 1000)
      : engine(toy_engine(kv_blocks)), conversation(*engine, *tokenizer, std::move(options)) {}

  Result<Conversation::End> say(std::string_view message, std::string* text) {
    text->clear();
    return conversation.say(
        message, [&](std::string_view piece) { *text += piece; }, kNeverStop);
  }
};

ConversationOptions options(std::uint64_t seed, std::int32_t max_tokens = 6) {
  return {.system = "a", .sampling = {.temperature = 1.5f}, .seed = seed, .max_tokens = max_tokens};
}

// The same conversation computed from its first token each time, as the chat template writes it.
TEST(Conversation, KeepingTheKvGivesTheAnswersOfComputingEverythingAgain) {
  int cut = 0, ended = 0;
  for (std::uint64_t seed = 0; seed < 30; ++seed) {
    Talk talk(options(seed));
    const TokenId turn_end = end_of_turn(*talk.tokenizer).value();
    const auto fresh = toy_engine();
    std::vector<TokenId> all;
    std::vector<ChatMessage> turn = {{"system", "a"}};
    for (const char* message : {"b", "cc", "d"}) {
      turn.push_back({"user", message});
      const auto added = encode_turns(*talk.tokenizer, turn, true).value();
      all.insert(all.end(), added.begin(), added.end());
      turn.clear();
      std::string expected;
      bool turn_ended = false;
      const SequenceId sequence = fresh->open().value();
      std::vector<TokenId> next = all;
      for (int i = 0; i < 6 && !turn_ended; ++i) {
        const Readout readout{
            .offset = static_cast<std::int32_t>(next.size()) - 1,
            .sampling = {.temperature = 1.5f},
            .key = {.seed = seed, .group = 0, .episode = 0, .position = static_cast<std::uint32_t>(all.size())},
            .target = {}};
        const Chunk chunk{sequence, next, {&readout, 1}};
        const TokenId token = fresh->forward({&chunk, 1}).value()[0].token;
        turn_ended = token == turn_end || token == kToyEos;
        if (turn_ended) break;
        expected += talk.tokenizer->token_bytes(token);
        all.push_back(token);
        next = {token};
      }
      fresh->close(sequence);
      all.push_back(turn_end);
      const auto line_end = talk.tokenizer->encode("\n");
      all.insert(all.end(), line_end.begin(), line_end.end());

      std::string text;
      const auto end = talk.say(message, &text);
      ASSERT_TRUE(end.ok()) << end.status().to_string();
      EXPECT_EQ(text, expected) << "seed " << seed << ", message " << message;
      EXPECT_EQ(*end, turn_ended ? Conversation::End::kTurn : Conversation::End::kMaxTokens);
      EXPECT_EQ(talk.conversation.tokens(), std::ssize(all));
      ++(turn_ended ? ended : cut);
    }
  }
  EXPECT_GT(cut, 5);
  EXPECT_GT(ended, 5);
}

TEST(Conversation, ResetForgetsEverything) {
  Talk talk(options(3));
  std::string first, second, again;
  ASSERT_TRUE(talk.say("b", &first).ok());
  ASSERT_TRUE(talk.say("b", &second).ok());
  talk.conversation.reset();
  EXPECT_EQ(talk.conversation.tokens(), 0);
  EXPECT_EQ(talk.engine->usage().blocks_used, 0);
  ASSERT_TRUE(talk.say("b", &again).ok());
  EXPECT_EQ(again, first);
}

TEST(Conversation, AStopEndsTheAnswerAndTheConversationGoesOn) {
  Talk talk(options(3, 40));
  int pieces = 0;
  const auto end = talk.conversation.say(
      "b", [&](std::string_view) { ++pieces; }, [&] { return pieces >= 2; });
  ASSERT_TRUE(end.ok());
  EXPECT_EQ(*end, Conversation::End::kStopped);
  std::string text;
  EXPECT_TRUE(talk.say("c", &text).ok());
}

TEST(Conversation, AFullContextEndsTheAnswerAndRefusesTheNextMessageUnchanged) {
  Talk talk(options(1, 1000), 3);  // 48 positions
  EXPECT_EQ(talk.conversation.context(), 48);
  std::string text;
  Status full = ok_status();
  int answers = 0;
  for (; full.ok() && answers < 100; ++answers) full = talk.say("b", &text).status();
  EXPECT_EQ(full.code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(full.message(), HasSubstr("the context is full"));
  const std::int32_t before = talk.conversation.tokens();
  EXPECT_EQ(talk.say("b", &text).status().code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(talk.conversation.tokens(), before);
  talk.conversation.reset();
  EXPECT_TRUE(talk.say("b", &text).ok());
  EXPECT_EQ(talk.say(std::string(60, 'b'), &text).status().code(), StatusCode::kResourceExhausted);
}

// Takes all blocks that are free.
SequenceId fill(Engine& engine) {
  const SequenceId other = engine.open().value();
  const std::vector<TokenId> block(kBlockTokens, kToyA);
  for (;;) {
    const Chunk chunk{other, block, {}};
    if (!engine.forward({&chunk, 1}).ok()) return other;
  }
}

TEST(Conversation, AMessageForWhichTheEngineHasNoRoomChangesNothing) {
  Talk talk(options(3), 8), untroubled(options(3), 8);
  std::string text, expected;
  for (const std::string& message : {std::string("b"), std::string(20, 'c')}) {
    const std::int32_t before = talk.conversation.tokens();
    const SequenceId other = fill(*talk.engine);
    EXPECT_EQ(talk.say(message, &text).status().code(), StatusCode::kResourceExhausted);
    EXPECT_EQ(talk.conversation.tokens(), before);
    talk.engine->close(other);
    ASSERT_TRUE(talk.say(message, &text).ok());
    ASSERT_TRUE(untroubled.say(message, &expected).ok());
    EXPECT_EQ(text, expected);
    EXPECT_EQ(talk.conversation.tokens(), untroubled.conversation.tokens());
  }
}

TEST(Conversation, AnAnswerEndsWhereTheEngineHasNoRoomAndTheConversationGoesOn) {
  int cut = 0;
  for (std::uint64_t seed = 0; seed < 30; ++seed) {
    Talk talk(options(seed, 40), 8);
    std::optional<SequenceId> other;
    const auto end = talk.conversation.say(
        "b",
        [&](std::string_view) {
          if (!other) other = fill(*talk.engine);
        },
        kNeverStop);
    ASSERT_TRUE(end.ok()) << end.status().to_string();
    cut += *end == Conversation::End::kContext;
    const std::int32_t said = talk.conversation.tokens();
    if (other) talk.engine->close(*other);
    std::string text;
    ASSERT_TRUE(talk.say("c", &text).ok());
    EXPECT_GT(talk.conversation.tokens(), said);
  }
  EXPECT_GT(cut, 0);
}

}  // namespace
}  // namespace flotilla
