#include "serve/api_request.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <nlohmann/json.hpp>

#include "model/test_models.h"

namespace flotilla {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr std::uint64_t kFreshSeed = 99;

class ApiRequestTest : public testing::Test {
 protected:
  std::shared_ptr<const Tokenizer> tokenizer_ = Tokenizer::create(tiny_tokenizer_spec()).value();
  ServedModel model_{
      .name = "tiny", .fingerprint = "f", .tokenizer = tokenizer_.get(), .vocabulary = 259, .context = 128};

  std::variant<ApiRequest, ApiError> parse(ApiKind kind, const std::string& body) const {
    return parse_api_request(kind, body, model_, kFreshSeed);
  }
  // The smallest request with more fields.
  std::variant<ApiRequest, ApiError> chat(const json& more = json::object()) const {
    json body = {{"model", "tiny"}, {"max_tokens", 4}, {"messages", {{{"role", "system"}, {"content", "s"}}}}};
    body.update(more);
    return parse(ApiKind::kChat, body.dump());
  }
  std::variant<ApiRequest, ApiError> complete(const json& more = json::object()) const {
    json body = {{"model", "tiny"}, {"prompt", "ab"}};
    body.update(more);
    return parse(ApiKind::kCompletion, body.dump());
  }
  static ApiRequest accepted(std::variant<ApiRequest, ApiError> parsed) {
    if (const auto* error = std::get_if<ApiError>(&parsed)) ADD_FAILURE() << error->to_json();
    return std::holds_alternative<ApiRequest>(parsed) ? std::get<ApiRequest>(std::move(parsed)) : ApiRequest{};
  }
  static ApiError refused(std::variant<ApiRequest, ApiError> parsed) {
    EXPECT_TRUE(std::holds_alternative<ApiError>(parsed));
    return std::holds_alternative<ApiError>(parsed) ? std::get<ApiError>(std::move(parsed)) : ApiError{};
  }
};

TEST_F(ApiRequestTest, WhatIsLeftOutHasTheApisDefaults) {
  const ApiRequest request = accepted(complete());
  EXPECT_EQ(request.generation.choices, 1);
  EXPECT_EQ(request.generation.max_tokens, 16);
  EXPECT_EQ(request.generation.sampling.temperature, 1);
  EXPECT_EQ(request.generation.sampling.top_p, 1);
  EXPECT_EQ(request.generation.sampling.top_k, 0);
  EXPECT_EQ(request.generation.seed, kFreshSeed);
  EXPECT_FALSE(request.stream || request.logprobs || request.echo || request.include_usage);
  EXPECT_THAT(request.generation.stop_tokens, ElementsAre(258, 258));
  const ApiRequest chat_request = accepted(chat({{"max_tokens", nullptr}}));
  EXPECT_EQ(chat_request.generation.max_tokens, 128 - std::ssize(chat_request.generation.prompts[0]));
}

TEST_F(ApiRequestTest, EveryFieldIsTaken) {
  const ApiRequest request = accepted(complete({{"max_tokens", 7},
                                                {"temperature", 0.5},
                                                {"top_p", 0.25},
                                                {"top_k", 3},
                                                {"seed", -1},
                                                {"n", 2},
                                                {"stop", {"x", "yz"}},
                                                {"stream", true},
                                                {"stream_options", {{"include_usage", true}}},
                                                {"logprobs", 5},
                                                {"echo", true},
                                                {"user", "somebody"}}));
  EXPECT_EQ(request.generation.max_tokens, 7);
  EXPECT_EQ(request.generation.sampling.temperature, 0.5f);
  EXPECT_EQ(request.generation.sampling.top_p, 0.25f);
  EXPECT_EQ(request.generation.sampling.top_k, 3);
  EXPECT_EQ(request.generation.seed, ~std::uint64_t{0});
  EXPECT_EQ(request.generation.choices, 2);
  EXPECT_THAT(request.generation.stop_strings, ElementsAre("x", "yz"));
  EXPECT_TRUE(request.stream && request.include_usage && request.logprobs && request.echo);
  EXPECT_TRUE(request.generation.score_prompt);
  EXPECT_EQ(request.generation.top, 5);
}

TEST_F(ApiRequestTest, SeedsOfAllSizesAreTaken) {
  for (const auto& [seed, expected] : {std::pair<json, std::uint64_t>{0, 0},
                                       {std::numeric_limits<std::int64_t>::min(), std::uint64_t{1} << 63},
                                       {std::numeric_limits<std::uint64_t>::max(), ~std::uint64_t{0}}}) {
    EXPECT_EQ(accepted(chat({{"seed", seed}})).generation.seed, expected);
  }
  EXPECT_EQ(refused(parse(ApiKind::kChat, R"({"model": "tiny", "messages": [], "seed": 18446744073709551616})")).param,
            "seed");
  EXPECT_EQ(refused(chat({{"seed", "1"}})).param, "seed");
}

TEST_F(ApiRequestTest, PromptsAreTextOrTokensOrListsOfThem) {
  EXPECT_THAT(accepted(complete({{"prompt", "ab"}})).generation.prompts, ElementsAre(ElementsAre('a', 'b')));
  EXPECT_THAT(accepted(complete({{"prompt", {5, 258}}})).generation.prompts, ElementsAre(ElementsAre(5, 258)));
  EXPECT_THAT(accepted(complete({{"prompt", {{1, 2}, "a"}}})).generation.prompts,
              ElementsAre(ElementsAre(1, 2), ElementsAre('a')));
  EXPECT_THAT(accepted(complete({{"prompt", "<|im_end|>a"}})).generation.prompts, ElementsAre(ElementsAre(258, 'a')))
      << "who completes writes the format too";
}

TEST_F(ApiRequestTest, AMessageCannotForgeARole) {
  const auto prompt =
      accepted(chat({{"messages", {{{"role", "user"}, {"content", "<|im_end|>"}}}}, {"max_tokens", 1}}));
  EXPECT_EQ(std::ranges::count(prompt.generation.prompts[0], 258), 1) << "the end of the message";
}

TEST_F(ApiRequestTest, AnAnswerCanBeSentBackAsTheApiGaveIt) {
  const json parts = {{{"type", "text"}, {"text", "a"}}, {{"type", "text"}, {"text", "b"}}};
  const json history = {{{"role", "developer"}, {"content", "ab"}},
                        {{"role", "assistant"},
                         {"content", "ab"},
                         {"refusal", nullptr},
                         {"tool_calls", nullptr},
                         {"annotations", json::array()}}};
  const json plain = {{{"role", "system"}, {"content", parts}}, {{"role", "assistant"}, {"content", "ab"}}};
  EXPECT_EQ(accepted(chat({{"messages", history}})).generation.prompts,
            accepted(chat({{"messages", plain}})).generation.prompts);
}

TEST_F(ApiRequestTest, WhatIsWrongIsNamed) {
  const std::pair<json, const char*> wrong_chats[] = {
      {{{"temperature", -0.01}}, "temperature: -0.01 lies outside [0, 2]"},
      {{{"temperature", 2.01}}, "temperature: 2.01 lies outside [0, 2]"},
      {{{"temperature", "1"}}, "temperature: expected a number, got \"1\""},
      {{{"temperature", true}}, "temperature: expected a number"},
      {{{"top_p", 0}}, "top_p: 0 lies outside (0, 1]"},
      {{{"top_p", 1.1}}, "top_p: 1.1 lies outside"},
      {{{"top_k", -1}}, "top_k: -1 lies outside"},
      {{{"top_k", 1.0}}, "top_k: expected an integer, got 1.0"},
      {{{"top_k", std::numeric_limits<std::uint64_t>::max()}}, "top_k: 18446744073709551615 lies outside"},
      {{{"n", 0}}, "n: 0 lies outside [1, 128]"},
      {{{"n", 129}}, "n: 129 lies outside [1, 128]"},
      {{{"max_tokens", 0}}, "max_tokens: 0 lies outside"},
      {{{"max_completion_tokens", 5}}, "max_tokens: 4 contradicts max_completion_tokens 5"},
      {{{"stop", ""}}, "stop: an empty string"},
      {{{"stop", {"a", 1}}}, "stop: expected a string or a list of strings"},
      {{{"stop", {"a", "b", "c", "d", "e"}}}, "stop: 5 strings, at most 4"},
      {{{"stop", std::string(1001, 'a')}}, "stop: a string of 1001 bytes"},
      {{{"stream", 1}}, "stream: expected true or false, got 1"},
      {{{"stream_options", {{"include_usage", true}}}}, "stream_options: needs stream"},
      {{{"stream", true}, {"stream_options", {{"x", 1}}}}, "stream_options.x: is not a field"},
      {{{"top_logprobs", 1}}, "top_logprobs: needs logprobs"},
      {{{"logprobs", true}, {"top_logprobs", 21}}, "top_logprobs: 21 lies outside [0, 20]"},
      {{{"logprobs", 1}}, "logprobs: expected true or false"},
      {{{"frequency_penalty", 0.1}}, "frequency_penalty: 0.1 is not supported"},
      {{{"presence_penalty", 1}}, "presence_penalty: 1 is not supported"},
      {{{"logit_bias", {{"1", 5}}}}, "logit_bias: {\"1\":5} is not supported"},
      {{{"tools", {{{"type", "function"}}}}}, "tools: "},
      {{{"tool_choice", "auto"}}, "tool_choice: "},
      {{{"response_format", {{"type", "json_object"}}}}, "response_format: "},
      {{{"store", true}}, "store: "},
      {{{"nonsense", 1}}, "nonsense: is not a field that this server knows"},
      {{{"prompt", "a"}}, "prompt: is not a field"},
      {{{"messages", json::array()}}, "messages: is empty"},
      {{{"messages", "hi"}}, "messages: expected a list"},
      {{{"messages", {"hi"}}}, "messages[0]: expected an object"},
      {{{"messages", {{{"role", "tool"}, {"content", "x"}}}}}, "messages[0].role: \"tool\" is not supported"},
      {{{"messages", {{{"role", "user"}}}}}, "messages[0].content: is required"},
      {{{"messages", {{{"role", "user"}, {"content", 5}}}}}, "messages[0].content: expected a string"},
      {{{"messages", {{{"role", "user"}, {"content", {{{"type", "image_url"}}}}}}}}, "content[0].type: \"image_url\""},
      {{{"messages", {{{"role", "user"}, {"content", "x"}, {"name", "n"}}}}}, "messages[0].name: is not a field"},
      {{{"messages", {{{"role", "user"}, {"content", "x"}, {"tool_calls", {1}}}}}}, "messages[0].tool_calls: "},
      {{{"max_tokens", 127}}, "together more than the 128"},
      {{{"model", 5}}, "model: expected a string"},
  };
  for (const auto& [more, message] : wrong_chats) {
    const ApiError error = refused(chat(more));
    EXPECT_EQ(error.http_status, 400) << message;
    EXPECT_EQ(error.type, "invalid_request_error");
    EXPECT_THAT(error.message, HasSubstr(message));
    EXPECT_TRUE(error.message.starts_with(error.param)) << error.to_json();
    EXPECT_NE(error.code, "");
  }
  const std::pair<json, const char*> wrong_completions[] = {
      {{{"prompt", ""}}, "prompt: is empty"},
      {{{"prompt", json::array()}}, "prompt: is empty"},
      {{{"prompt", {json::array()}}}, "prompt: is empty"},
      {{{"prompt", nullptr}}, "prompt: is required"},
      {{{"prompt", {1, 259}}}, "prompt: token 259 lies outside the vocabulary of 259"},
      {{{"prompt", {-1}}}, "prompt: token -1 lies outside"},
      {{{"prompt", {std::numeric_limits<std::uint64_t>::max()}}}, "prompt: token 18446744073709551615 lies outside"},
      {{{"prompt", {1.5}}}, "prompt: expected a string, a list of token ids"},
      {{{"prompt", json::array({1, "a"})}}, "prompt: expected"},
      {{{"prompt", json(129, "a")}}, "prompt: 129 prompts, at most 128"},
      {{{"prompt", json(65, "a")}, {"n", 2}}, "n: 2 for each of 65 prompts"},
      {{{"prompt", std::string(128, 'a')}}, "prompt: the prompt has 128 tokens"},
      {{{"max_tokens", 127}}, "max_tokens: the prompt has 2 tokens and the answer may have 127"},
      {{{"logprobs", 6}}, "logprobs: 6 lies outside [0, 5]"},
      {{{"logprobs", true}}, "logprobs: expected an integer"},
      {{{"best_of", 2}}, "best_of: 2 is not supported"},
      {{{"suffix", "x"}}, "suffix: "},
      {{{"messages", json::array()}}, "messages: is not a field"},
  };
  for (const auto& [more, message] : wrong_completions)
    EXPECT_THAT(refused(complete(more)).message, HasSubstr(message));
  EXPECT_EQ(refused(complete({{"max_tokens", 127}})).code, "context_length_exceeded");
  EXPECT_EQ(refused(chat({{"model", "other"}})).http_status, 404);
  EXPECT_EQ(refused(chat({{"model", "other"}})).code, "model_not_found");
}

TEST_F(ApiRequestTest, WhatCannotFitIsRefusedBeforeItIsEncoded) {
  // The longest token, <|im_start|>, has 12 bytes, and the context 128 tokens.
  EXPECT_THAT(refused(complete({{"prompt", std::string(1536, 'a')}})).message, HasSubstr("has 1536 tokens"));
  const json long_message = {{{"role", "user"}, {"content", std::string(1000, 'a')}},
                             {{"role", "user"}, {"content", std::string(537, 'a')}}};
  const json many_messages(65, json{{"role", "user"}, {"content", ""}});
  for (const auto& [error, what] :
       {std::pair{refused(complete({{"prompt", std::string(1537, 'a')}})), "prompt: 1537 bytes of text"},
        std::pair{refused(complete({{"prompt", {"a", std::string(1537, 'a')}}})), "prompt: 1537 bytes of text"},
        std::pair{refused(complete({{"prompt", json(129, 5)}})), "prompt: 129 tokens are more than the 128 tokens"},
        std::pair{refused(chat({{"messages", long_message}})), "messages: 1537 bytes of text"},
        std::pair{refused(chat({{"messages", many_messages}})), "messages: 65 messages"}}) {
    EXPECT_THAT(error.message, HasSubstr(what));
    EXPECT_EQ(error.code, "context_length_exceeded");
    EXPECT_TRUE(error.message.starts_with(error.param)) << error.to_json();
  }
}

TEST_F(ApiRequestTest, MoreLogprobsThanCanBePutTogetherAreRefused) {
  json more = {{"n", 128}, {"max_tokens", 100}, {"logprobs", true}, {"top_logprobs", 20}};
  const ApiError error = refused(chat(more));
  EXPECT_EQ(error.http_status, 400);
  EXPECT_EQ(error.code, "too_many_logprobs");
  EXPECT_EQ(error.param, "logprobs");
  EXPECT_THAT(error.message, HasSubstr("128 choices of 100 tokens with 20 alternatives are 268800 logprobs"));
  EXPECT_THAT(error.message, HasSubstr("at most 262144"));
  more["stream"] = true;  // a few at a time
  accepted(chat(more));
  more["stream"] = false;
  more["max_tokens"] = 97;
  accepted(chat(more));

  // A prompt's scores come at once in a stream too.
  model_.context = 2000;
  more = {{"prompt", json(400, 5)}, {"n", 128}, {"max_tokens", 0}, {"logprobs", 5}, {"echo", true}, {"stream", true}};
  EXPECT_EQ(refused(complete(more)).code, "too_many_logprobs");
  more["echo"] = false;
  more["max_tokens"] = 1;
  accepted(complete(more));
}

TEST_F(ApiRequestTest, NeutralValuesOfWhatIsNotSupportedAreAccepted) {
  accepted(chat({{"frequency_penalty", 0.0},
                 {"presence_penalty", 0},
                 {"logit_bias", json::object()},
                 {"tools", json::array()},
                 {"tool_choice", "none"},
                 {"response_format", {{"type", "text"}}},
                 {"modalities", {"text"}},
                 {"store", false},
                 {"parallel_tool_calls", true},
                 {"min_p", 0},
                 {"repetition_penalty", 1},
                 {"metadata", {{"a", "b"}}}}));
  accepted(complete({{"best_of", 2}, {"n", 2}, {"suffix", nullptr}}));
}

TEST_F(ApiRequestTest, OnlyScoresAreWantedWhereTheAnswerHasNoTokens) {
  const ApiRequest request =
      accepted(complete({{"echo", true}, {"max_tokens", 0}, {"logprobs", 0}, {"prompt", std::string(128, 'a')}}));
  EXPECT_EQ(request.generation.max_tokens, 0);
  EXPECT_TRUE(request.generation.score_prompt);
  EXPECT_THAT(refused(complete({{"max_tokens", 0}})).message, HasSubstr("max_tokens: 0"));
}

TEST_F(ApiRequestTest, TheSmallestTemperatureIsNotZero) {
  EXPECT_GT(accepted(chat({{"temperature", 1e-300}})).generation.sampling.temperature, 0);
  EXPECT_GT(accepted(chat({{"top_p", 1e-300}})).generation.sampling.top_p, 0);
  EXPECT_EQ(accepted(chat({{"temperature", 0}})).generation.sampling.temperature, 0);
}

TEST_F(ApiRequestTest, WhatIsNotJsonIsRefused) {
  for (const char* body :
       {"", "{", "nul", "{\"temperature\": NaN}", "{\"a\": 1, \"a\": 2}", "\"\xff\"", "{\"seed\": 1e999}"}) {
    EXPECT_EQ(refused(parse(ApiKind::kChat, body)).code, "invalid_json") << body;
  }
  EXPECT_EQ(refused(parse(ApiKind::kChat, std::string(100000, '['))).code, "invalid_json");
  EXPECT_THAT(refused(parse(ApiKind::kChat, "[]")).message, HasSubstr("body: expected an object"));
}

TEST_F(ApiRequestTest, AModelWithoutChatFormatPointsToCompletions) {
  TokenizerSpec spec = tiny_tokenizer_spec();
  spec.special.clear();
  spec.tokens.resize(257);
  spec.bos = spec.eos = spec.pad = -1;
  tokenizer_ = Tokenizer::create(std::move(spec)).value();
  model_.tokenizer = tokenizer_.get();
  EXPECT_THAT(refused(chat()).message, HasSubstr("/v1/completions"));
  EXPECT_TRUE(accepted(complete()).generation.stop_tokens.empty());
}

TEST(ApiError, StatusesBecomeWhatClientsRaise) {
  EXPECT_EQ(api_error_of(invalid_argument("x")).http_status, 400);
  EXPECT_EQ(api_error_of(resource_exhausted("x")).http_status, 429);
  EXPECT_EQ(api_error_of(unavailable("x")).http_status, 503);
  EXPECT_EQ(api_error_of(deadline_exceeded("x")).http_status, 504);
  EXPECT_EQ(api_error_of(data_loss("x")).http_status, 500);
  const json error = json::parse(ApiError{.message = "m\xff"}.to_json())["error"];
  EXPECT_EQ(error["param"], nullptr);
  EXPECT_EQ(error["type"], "invalid_request_error");
}

}  // namespace
}  // namespace flotilla
