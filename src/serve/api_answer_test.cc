#include "serve/api_answer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <nlohmann/json.hpp>

#include "model/test_models.h"

namespace flotilla {
namespace {

using nlohmann::json;

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

class ApiAnswerTest : public testing::Test {
 protected:
  // Of which each byte is a token with its own number.
  std::shared_ptr<const Tokenizer> tokenizer_ = Tokenizer::create(tiny_tokenizer_spec()).value();
  ServedModel model_{
      .name = "tiny", .fingerprint = "f", .tokenizer = tokenizer_.get(), .vocabulary = 259, .context = 128};

  std::unique_ptr<ApiAnswer> answer(ApiRequest request) const {
    request.generation.prompts.push_back({'a', 'b'});
    return std::make_unique<ApiAnswer>(std::move(request), model_, "0", 7);
  }
  // The objects of server-sent events.
  static std::vector<json> objects(std::string_view text) {
    std::vector<json> all;
    constexpr std::string_view kBegin = "data: ", kEnd = "\n\n";
    while (!text.empty()) {
      EXPECT_TRUE(text.starts_with(kBegin)) << text;
      const std::string_view data = text.substr(kBegin.size(), text.find(kEnd) - kBegin.size());
      all.push_back(data == "[DONE]" ? json("[DONE]") : json::parse(data));
      text.remove_prefix(kBegin.size() + data.size() + kEnd.size());
    }
    return all;
  }
  // The euro sign, a token a byte.
  static GenerationEvent euro() {
    return {.text = "\xE2\x82\xAC",
            .tokens = {{.token = 0xE2, .logprob = -0.5f},
                       {.token = 0x82, .logprob = -0.25f, .top = {{.token = 'a', .logprob = -0.125f}}},
                       {.token = 0xAC, .logprob = kMinusInfinity}}};
  }
};

TEST_F(ApiAnswerTest, AnErrorIsTheLastThingThatAStreamSays) {
  const auto stream = answer({.kind = ApiKind::kChat, .stream = true, .include_usage = true});
  stream->chunks(euro());
  const auto said = objects(stream->chunks({.end = deadline_exceeded("too late")}));
  ASSERT_EQ(said.size(), 1u) << "no usage, no [DONE]";
  EXPECT_EQ(said[0]["error"]["message"], "too late");
  EXPECT_EQ(said[0]["error"]["code"], "time_limit");
}

TEST_F(ApiAnswerTest, UsageIsNullInAllChunksButItsOwn) {
  for (const ApiKind kind : {ApiKind::kChat, ApiKind::kCompletion}) {
    const auto stream = answer({.kind = kind, .stream = true, .include_usage = true});
    for (const json& chunk : objects(stream->chunks(euro()))) {
      ASSERT_TRUE(chunk.contains("usage")) << chunk;
      EXPECT_TRUE(chunk["usage"].is_null());
    }
    const auto last =
        objects(stream->chunks({.end = ok_status(), .usage = {.prompt_tokens = 2, .completion_tokens = 3}}));
    ASSERT_EQ(last.size(), 2u);
    EXPECT_EQ(last[0]["choices"], json::array());
    EXPECT_EQ(last[0]["usage"], (json{{"prompt_tokens", 2}, {"completion_tokens", 3}, {"total_tokens", 5}}));
    EXPECT_EQ(last[1], "[DONE]");

    const auto plain = answer({.kind = kind, .stream = true});
    for (const json& chunk : objects(plain->chunks(euro()))) EXPECT_FALSE(chunk.contains("usage"));
  }
}

TEST_F(ApiAnswerTest, TokensThatAreNoTextShowTheirBytes) {
  const auto chat = answer({.kind = ApiKind::kChat, .logprobs = true});
  chat->add(euro());
  const json choice = json::parse(chat->whole({}))["choices"][0];
  EXPECT_EQ(choice["message"]["content"], "\xE2\x82\xAC");
  const json& content = choice["logprobs"]["content"];
  ASSERT_EQ(content.size(), 3u);
  EXPECT_EQ(content[0]["bytes"], json::array({0xE2}));
  EXPECT_EQ(content[0]["token"], "\xEF\xBF\xBD") << "JSON holds text only";
  EXPECT_EQ(content[1]["top_logprobs"][0]["token"], "a");
  EXPECT_EQ(content[2]["bytes"], json::array({0xAC}));
  EXPECT_EQ(content[2]["logprob"], -9999) << "what JSON cannot say";

  const auto completion = answer({.kind = ApiKind::kCompletion, .logprobs = true});
  completion->add(euro());
  const json logprobs = json::parse(completion->whole({}))["choices"][0]["logprobs"];
  EXPECT_EQ(logprobs["tokens"], json::array({"bytes:\\xe2", "bytes:\\x82", "bytes:\\xac"}));
  EXPECT_EQ(logprobs["text_offset"], json::array({0, 1, 1})) << "in characters";
}

TEST_F(ApiAnswerTest, TheFirstTokenOfAPromptHasNoLogprob) {
  ApiRequest request{.kind = ApiKind::kCompletion, .logprobs = true, .echo = true};
  request.generation.top = 1;
  const GenerationEvent scores{
      .prompt = {{.token = 'a'}, {.token = 'b', .logprob = -2.0f, .top = {{.token = 'c', .logprob = -1.0f}}}},
      .finish = FinishReason::kLength};
  for (const bool stream : {false, true}) {
    const auto scored = answer(request);
    std::string said;
    if (stream) {
      said = scored->chunks(scores).substr(std::string_view("data: ").size());
    } else {
      scored->add(scores);
      said = scored->whole({});
    }
    const json choice = json::parse(said)["choices"][0];
    EXPECT_EQ(choice["text"], "ab");
    EXPECT_EQ(choice["finish_reason"], "length");
    EXPECT_EQ(choice["logprobs"]["token_logprobs"], json::array({nullptr, -2.0}));
    EXPECT_EQ(choice["logprobs"]["top_logprobs"], json::array({nullptr, {{"b", -2.0}, {"c", -1.0}}}));
    EXPECT_EQ(choice["logprobs"]["text_offset"], json::array({0, 1}));
  }
}

TEST_F(ApiAnswerTest, ALargeEventInPiecesGivesTheSameAnswer) {
  GenerationEvent event{.choice = 1, .text = "cd", .tokens = {{.token = 'c', .logprob = -3.0f}}};
  for (int i = 0; i < 100; ++i) {
    ScoredToken token{.token = 'a' + i % 7};
    if (i > 0) token.logprob = -0.5f;
    for (int top = 0; i > 0 && top < 5; ++top) token.top.push_back({.token = 'm' + top, .logprob = -1.0f});
    event.prompt.push_back(token);
  }
  event.finish = FinishReason::kLength;
  ApiRequest request{.kind = ApiKind::kCompletion, .logprobs = true, .echo = true};
  request.generation.choices = 2;
  request.generation.top = 5;
  const auto once = answer(request), often = answer(request);
  once->add(event);
  const auto pieces = in_pieces(event, 64);
  ASSERT_EQ(pieces.size(), 10u) << "10 tokens with 6 logprobs each, the first of them alone with less";
  for (const GenerationEvent& piece : pieces) {
    EXPECT_LE(piece.prompt.size(), 11u);
    EXPECT_EQ(piece.finish.has_value(), &piece == &pieces.back());
    often->add(piece);
  }
  EXPECT_EQ(often->whole({}), once->whole({}));
  const json logprobs = json::parse(often->whole({}))["choices"][1]["logprobs"];
  EXPECT_EQ(logprobs["tokens"].size(), 101u);
  EXPECT_EQ(logprobs["text_offset"][100], 100);

  const auto stream = answer(request);
  std::string text;
  std::size_t tokens = 0;
  for (const GenerationEvent& piece : pieces) {
    const auto said = objects(stream->chunks(piece));
    ASSERT_EQ(said.size(), 1u);
    const json& choice = said[0]["choices"][0];
    text += choice["text"];
    EXPECT_EQ(choice["logprobs"]["text_offset"][0], tokens);
    tokens += choice["logprobs"]["tokens"].size();
    EXPECT_EQ(choice["finish_reason"].is_null(), &piece != &pieces.back());
  }
  EXPECT_EQ(text, "abcd");
  EXPECT_EQ(tokens, 101u);
  EXPECT_EQ(in_pieces(euro(), 1).size(), 1u) << "prompts alone are large";
  EXPECT_EQ(in_pieces({.end = ok_status()}, 1).size(), 1u);
}

}  // namespace
}  // namespace flotilla
