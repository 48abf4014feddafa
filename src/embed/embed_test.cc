// The library as a C program sees it, against the engine in C++.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/files.h"
#include "embed/include/flotilla.h"
#include "engine/engine.h"
#include "model/grid.h"
#include "model/packaged_model.h"
#include "model/test_models.h"

namespace flotilla {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr std::int32_t kContext = 64;
constexpr std::int32_t kRows = 300;  // of the embedding; the tokenizer has 259 tokens

void write_model(const fs::path& folder) {
  ModelDescription sizes = tiny_description(true, "qwen2");
  sizes.hidden = 64;
  sizes.head_dim = 16;
  sizes.ffn = 128;
  sizes.vocabulary = kRows;
  sizes.context = kContext;
  const auto tokenizer = Tokenizer::create(tiny_tokenizer_spec()).value();
  ASSERT_TRUE(save_model_folder(folder, tiny_weights(describe_model(std::move(sizes)).value()), *tokenizer).ok());
}

struct Drawn {
  std::vector<TokenId> tokens;
  std::vector<float> logprobs;
  bool operator==(const Drawn&) const = default;
};

// What the engine itself draws after `prompt`, one token a forward pass.
Drawn drawn_by_the_engine(const fs::path& path, std::vector<TokenId> tokens, const flotilla_sampling& sampling,
                          std::size_t count, TokenId end = -1) {
  const Model model = load_model(path).value();
  EngineOptions options;
  options.threads = 2;
  options.kv_blocks = 64;
  const auto engine = Engine::create(model.weights.description, options).value();
  EXPECT_TRUE(engine->load(make_grid(model.weights).value()).ok());
  const SequenceId sequence = engine->open().value();
  Drawn drawn;
  std::size_t computed = 0;
  while (drawn.tokens.size() < count && (drawn.tokens.empty() || drawn.tokens.back() != end)) {
    Readout readout;
    readout.offset = static_cast<std::int32_t>(tokens.size() - computed - 1);
    readout.sampling = {sampling.temperature, sampling.top_k, sampling.top_p};
    readout.key = {sampling.seed, sampling.stream, 0, static_cast<std::uint32_t>(tokens.size())};
    const Chunk chunk{sequence, std::span(tokens).subspan(computed), {&readout, 1}};
    const auto result = engine->forward({&chunk, 1}).value().front();
    computed = tokens.size();
    drawn.tokens.push_back(result.token);
    drawn.logprobs.push_back(result.logprob);
    tokens.push_back(result.token);
  }
  return drawn;
}

int keep(const flotilla_sample_result* sampled, void* user) {
  auto* drawn = static_cast<Drawn*>(user);
  drawn->tokens.push_back(sampled->token);
  drawn->logprobs.push_back(sampled->logprob);
  return 0;
}

class Embed : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(write_model(path()));
    ASSERT_EQ(flotilla_model_load(path().c_str(), &model_), FLOTILLA_OK) << flotilla_error_message();
    ASSERT_NO_FATAL_FAILURE(make_engine(1024));
  }
  void TearDown() override {
    EXPECT_EQ(flotilla_engine_free(engine_), FLOTILLA_OK);
    flotilla_model_free(model_);
  }

  fs::path path() const { return folder_.path() / "model"; }
  void make_engine(std::int64_t room) {
    ASSERT_EQ(flotilla_engine_free(engine_), FLOTILLA_OK);
    flotilla_engine_options options = FLOTILLA_ENGINE_OPTIONS_INIT;
    options.threads = 2;
    options.room = room;
    ASSERT_EQ(flotilla_engine_create(model_, &options, &engine_), FLOTILLA_OK) << flotilla_error_message();
  }
  flotilla_sequence open(const std::vector<TokenId>& tokens) {
    flotilla_sequence sequence = 0;
    EXPECT_EQ(flotilla_open(engine_, &sequence), FLOTILLA_OK) << flotilla_error_message();
    EXPECT_EQ(flotilla_append(engine_, sequence, tokens.data(), tokens.size()), FLOTILLA_OK)
        << flotilla_error_message();
    return sequence;
  }
  std::int32_t length(flotilla_sequence sequence) {
    std::int32_t length = -1;
    EXPECT_EQ(flotilla_length(engine_, sequence, &length), FLOTILLA_OK) << flotilla_error_message();
    return length;
  }
  std::int64_t room_used() {
    flotilla_usage usage = FLOTILLA_USAGE_INIT;
    EXPECT_EQ(flotilla_get_usage(engine_, &usage), FLOTILLA_OK) << flotilla_error_message();
    return usage.room_used;
  }
  Drawn generate(flotilla_sequence sequence, const flotilla_sampling& sampling, std::int32_t count) {
    Drawn drawn;
    EXPECT_EQ(flotilla_generate(engine_, sequence, &sampling, count, nullptr, 0, keep, &drawn, nullptr), FLOTILLA_OK)
        << flotilla_error_message();
    return drawn;
  }
  static void expect_error(flotilla_status status, flotilla_status expected, const std::string& message) {
    EXPECT_STREQ(flotilla_status_name(status), flotilla_status_name(expected)) << message;
    EXPECT_THAT(flotilla_error_message(), HasSubstr(message));
  }

  const std::vector<TokenId> prompt_ = {10, 200, 30, 4, 250, 60, 7, 80, 9, 100, 110, 12, 130, 14, 15, 16, 170, 18};
  TemporaryFolder folder_;
  flotilla_model* model_ = nullptr;
  flotilla_engine* engine_ = nullptr;
};

flotilla_sampling sampling_of(float temperature, std::int32_t top_k, float top_p, std::uint64_t stream = 0) {
  flotilla_sampling sampling = FLOTILLA_SAMPLING_INIT;
  sampling.temperature = temperature;
  sampling.top_k = top_k;
  sampling.top_p = top_p;
  sampling.seed = 0x123456789abcdefu;
  sampling.stream = stream;
  return sampling;
}

TEST_F(Embed, TellsItsVersionsAndTheModelsSizes) {
  EXPECT_EQ(flotilla_abi_version(), FLOTILLA_ABI_VERSION);
  EXPECT_STREQ(flotilla_version(), FLOTILLA_VERSION);
  EXPECT_EQ(flotilla_arithmetic(), kArithmetic);
  flotilla_model_info info = FLOTILLA_MODEL_INFO_INIT;
  ASSERT_EQ(flotilla_model_get_info(model_, &info), FLOTILLA_OK);
  EXPECT_EQ(info.parameters, load_model(path())->weights.description.parameters());
  EXPECT_EQ(info.context, kContext);
  EXPECT_EQ(info.vocabulary, kRows);
  EXPECT_EQ(info.tokens, 259);
  EXPECT_EQ(info.end, 258);
  EXPECT_EQ(info.end_of_turn, 258);
  EXPECT_STREQ(flotilla_status_name(static_cast<flotilla_status>(99)), "unknown");
}

TEST_F(Embed, GeneratesTheTokensAndLogprobsOfTheEngine) {
  for (const flotilla_sampling& sampling :
       {sampling_of(1, 0, 1), sampling_of(0.7f, 20, 0.9f), sampling_of(0, 0, 1), sampling_of(1, 0, 1, 7)}) {
    const flotilla_sequence sequence = open(prompt_);
    const Drawn drawn = generate(sequence, sampling, 20);
    EXPECT_EQ(drawn, drawn_by_the_engine(path(), prompt_, sampling, 20));
    EXPECT_EQ(length(sequence), std::ssize(prompt_) + 20);
    EXPECT_EQ(flotilla_close(engine_, sequence), FLOTILLA_OK);
  }
  EXPECT_NE(generate(open(prompt_), sampling_of(1, 0, 1), 20), generate(open(prompt_), sampling_of(1, 0, 1, 7), 20));
}

TEST_F(Embed, ABatchOfForksDrawsWhatEachDrawsAlone) {
  std::vector<flotilla_sequence> forks(5);
  std::vector<flotilla_sampling> samplings;
  const flotilla_sequence source = open(prompt_);
  for (std::size_t i = 0; i < forks.size(); ++i) {
    ASSERT_EQ(flotilla_fork(engine_, source, &forks[i]), FLOTILLA_OK);
    samplings.push_back(sampling_of(1, 0, 1, i));
  }
  std::vector<Drawn> together(forks.size());
  for (int step = 0; step < 8; ++step) {
    std::vector<flotilla_sample_result> results(forks.size());
    ASSERT_EQ(flotilla_sample(engine_, forks.data(), samplings.data(), forks.size(), results.data()), FLOTILLA_OK)
        << flotilla_error_message();
    for (std::size_t i = 0; i < forks.size(); ++i) keep(&results[i], &together[i]);
  }
  for (std::size_t i = 0; i < forks.size(); ++i) EXPECT_EQ(generate(open(prompt_), samplings[i], 8), together[i]);
  EXPECT_EQ(length(source), std::ssize(prompt_));
  EXPECT_EQ(flotilla_sample(engine_, nullptr, nullptr, 0, nullptr), FLOTILLA_OK);
}

TEST_F(Embed, ScoresWhatWasDrawnWithTheSameBits) {
  for (const flotilla_sampling& sampling : {sampling_of(0.8f, 50, 0.95f), sampling_of(0, 0, 1)}) {
    const flotilla_sequence sequence = open(prompt_);
    flotilla_sequence again = 0;
    ASSERT_EQ(flotilla_fork(engine_, sequence, &again), FLOTILLA_OK);
    const Drawn drawn = generate(sequence, sampling, 15);
    std::vector<float> scores(15);
    ASSERT_EQ(flotilla_score(engine_, again, drawn.tokens.data(), 15, &sampling, scores.data()), FLOTILLA_OK);
    EXPECT_EQ(scores, drawn.logprobs);
    EXPECT_EQ(length(again), length(sequence));
    // Both hold the same tokens now, however they came there.
    EXPECT_EQ(generate(again, sampling, 10), generate(sequence, sampling, 10));
  }

  const flotilla_sampling one = sampling_of(1, 1, 1);
  const std::vector<TokenId> greedy = {generate(open(prompt_), sampling_of(0, 0, 1), 1).tokens[0]};
  const std::vector<TokenId> other = {greedy[0] == 5 ? 6 : 5};
  float score = 1;
  ASSERT_EQ(flotilla_score(engine_, open(prompt_), greedy.data(), 1, &one, &score), FLOTILLA_OK);
  EXPECT_EQ(score, 0);
  ASSERT_EQ(flotilla_score(engine_, open(prompt_), other.data(), 1, &one, &score), FLOTILLA_OK);
  EXPECT_EQ(score, -std::numeric_limits<float>::infinity());
  ASSERT_EQ(flotilla_score(engine_, open(prompt_), other.data(), 1, nullptr, &score), FLOTILLA_OK);
  EXPECT_LT(score, 0);
}

TEST_F(Embed, HowTokensWereAppendedMakesNoDifference) {
  const flotilla_sampling sampling = sampling_of(1, 0, 1);
  const Drawn expected = generate(open(prompt_), sampling, 5);
  for (const std::size_t cut : {std::size_t{1}, std::size_t{2}, prompt_.size() - 1}) {
    const flotilla_sequence sequence = open({prompt_.begin(), prompt_.begin() + static_cast<std::ptrdiff_t>(cut)});
    ASSERT_EQ(flotilla_append(engine_, sequence, prompt_.data() + cut, prompt_.size() - cut), FLOTILLA_OK);
    EXPECT_EQ(flotilla_append(engine_, sequence, nullptr, 0), FLOTILLA_OK);
    EXPECT_EQ(length(sequence), std::ssize(prompt_));
    EXPECT_EQ(generate(sequence, sampling, 5), expected);
  }
}

TEST_F(Embed, GenerationEndsAtItsLimitAnEndTokenTheCallbackOrTheContext) {
  const flotilla_sampling sampling = sampling_of(1, 0, 1);
  const Drawn drawn = generate(open(prompt_), sampling, 10);
  const auto run = [&](std::int32_t limit, const std::vector<TokenId>& ends, flotilla_on_token on_token) {
    flotilla_end end = FLOTILLA_END_LIMIT;
    const flotilla_sequence sequence = open(prompt_);
    Drawn kept;
    EXPECT_EQ(flotilla_generate(engine_, sequence, &sampling, limit, ends.data(), ends.size(), on_token, &kept, &end),
              FLOTILLA_OK);
    return std::pair(end, length(sequence) - std::ssize(prompt_));
  };
  EXPECT_EQ(run(3, {}, keep), std::pair(FLOTILLA_END_LIMIT, std::ptrdiff_t{3}));
  EXPECT_EQ(run(0, {}, keep), std::pair(FLOTILLA_END_LIMIT, std::ptrdiff_t{0}));
  const auto first = std::find(drawn.tokens.begin(), drawn.tokens.end(), drawn.tokens[4]) - drawn.tokens.begin();
  EXPECT_EQ(run(10, {-1, drawn.tokens[4]}, nullptr), std::pair(FLOTILLA_END_TOKEN, first + 1));
  EXPECT_EQ(run(10, {}, [](const flotilla_sample_result*, void*) { return 1; }),
            std::pair(FLOTILLA_END_CALLBACK, std::ptrdiff_t{1}));
  EXPECT_EQ(run(1000, {}, nullptr), std::pair(FLOTILLA_END_CONTEXT, kContext - std::ssize(prompt_)));
}

TEST_F(Embed, AFullSequenceTakesNothingMore) {
  const std::vector<TokenId> all(kContext, 5);
  const flotilla_sequence full = open(all);
  const flotilla_sampling sampling = sampling_of(1, 0, 1);
  flotilla_sample_result result{};
  expect_error(flotilla_append(engine_, full, all.data(), 1), FLOTILLA_INVALID_ARGUMENT,
               "1 tokens after 64 pass the model's context of 64");
  expect_error(flotilla_sample(engine_, &full, &sampling, 1, &result), FLOTILLA_INVALID_ARGUMENT,
               "1 tokens after 64 pass");
  float score = 0;
  expect_error(flotilla_score(engine_, full, all.data(), 1, nullptr, &score), FLOTILLA_INVALID_ARGUMENT, "pass");
  flotilla_sequence empty = 0;
  ASSERT_EQ(flotilla_open(engine_, &empty), FLOTILLA_OK);
  const std::vector<TokenId> more(kContext + 1, 5);
  expect_error(flotilla_append(engine_, empty, more.data(), more.size()), FLOTILLA_INVALID_ARGUMENT,
               "65 tokens after 0 pass");
  EXPECT_EQ(length(empty), 0);
}

TEST_F(Embed, WithoutRoomNothingIsAppendedAndClosingGivesItBack) {
  ASSERT_NO_FATAL_FAILURE(make_engine(48));
  const std::vector<TokenId> tokens(40, 3);
  const flotilla_sequence first = open(tokens);
  EXPECT_EQ(room_used(), 48);
  flotilla_sequence second = 0;
  ASSERT_EQ(flotilla_open(engine_, &second), FLOTILLA_OK);
  expect_error(flotilla_append(engine_, second, tokens.data(), tokens.size()), FLOTILLA_RESOURCE_EXHAUSTED,
               "KV blocks needed");
  EXPECT_EQ(length(second), 0);
  const flotilla_sampling sampling = sampling_of(1, 0, 1);
  Drawn drawn;
  // 48 are computed; the one drawn after them is reported, too, and is held back as every last token is.
  expect_error(flotilla_generate(engine_, first, &sampling, 30, nullptr, 0, keep, &drawn, nullptr),
               FLOTILLA_RESOURCE_EXHAUSTED, "KV blocks needed");
  EXPECT_EQ(drawn.tokens.size(), 9u);
  EXPECT_EQ(length(first), 49);
  EXPECT_EQ(flotilla_close(engine_, first), FLOTILLA_OK);
  EXPECT_EQ(room_used(), 0);
  EXPECT_EQ(flotilla_append(engine_, second, tokens.data(), tokens.size()), FLOTILLA_OK);
}

TEST_F(Embed, TextGoesToTokensAndBack) {
  const std::string text = "this <|im_end|>";
  std::size_t count = 0;
  ASSERT_EQ(flotilla_encode(model_, text.data(), text.size(), 1, nullptr, 0, &count), FLOTILLA_OK);
  ASSERT_EQ(count, 5u);
  std::vector<flotilla_token> tokens(count, -7);
  expect_error(flotilla_encode(model_, text.data(), text.size(), 1, tokens.data(), 4, &count),
               FLOTILLA_RESOURCE_EXHAUSTED, "a buffer for 4 elements, 5 are needed");
  EXPECT_EQ(tokens[0], -7);
  ASSERT_EQ(flotilla_encode(model_, text.data(), text.size(), 1, tokens.data(), count, &count), FLOTILLA_OK);
  EXPECT_THAT(tokens, ElementsAre(256, 'i', 's', ' ', 258));
  const auto decoded = [&](const std::vector<flotilla_token>& ids, int keep_special) {
    std::string out(100, '?');
    std::size_t size = 0;
    EXPECT_EQ(flotilla_decode(model_, ids.data(), ids.size(), keep_special, out.data(), out.size(), &size),
              FLOTILLA_OK);
    return out.substr(0, size);
  };
  EXPECT_EQ(decoded(tokens, 0), "this ");
  EXPECT_EQ(decoded(tokens, 1), text);
  EXPECT_EQ(decoded({'a', 259, kRows - 1, 'b'}, 1), "ab");  // rows that pad the model
  EXPECT_EQ(decoded({}, 1), "");
  EXPECT_EQ(flotilla_encode(model_, nullptr, 0, 0, nullptr, 0, &count), FLOTILLA_OK);
  EXPECT_EQ(count, 0u);

  const flotilla_message messages[] = {{"user", "Hi<|im_end|>"}};
  ASSERT_EQ(flotilla_encode_chat(model_, messages, 1, 1, nullptr, 0, &count), FLOTILLA_OK);
  tokens.resize(count);
  ASSERT_EQ(flotilla_encode_chat(model_, messages, 1, 1, tokens.data(), count, &count), FLOTILLA_OK);
  EXPECT_EQ(decoded(tokens, 1), "<|im_start|>user\nHi<|im_end|><|im_end|>\n<|im_start|>assistant\n");
  EXPECT_EQ(std::count(tokens.begin(), tokens.end(), 258), 1);
}

TEST_F(Embed, TheWeightsCanBeReleasedOnceEnginesAreMade) {
  const Drawn before = generate(open(prompt_), sampling_of(1, 0, 1), 5);
  ASSERT_EQ(flotilla_model_release_weights(model_), FLOTILLA_OK);
  EXPECT_EQ(generate(open(prompt_), sampling_of(1, 0, 1), 5), before);
  const flotilla_engine_options options = FLOTILLA_ENGINE_OPTIONS_INIT;
  flotilla_engine* engine = nullptr;
  expect_error(flotilla_engine_create(model_, &options, &engine), FLOTILLA_FAILED_PRECONDITION, "were released");
  EXPECT_EQ(engine, nullptr);
  flotilla_model_free(model_);
  model_ = nullptr;
  EXPECT_EQ(generate(open(prompt_), sampling_of(1, 0, 1), 5), before);
}

TEST_F(Embed, MemoryNeededGrowsWithTheRoom) {
  flotilla_engine_options options = FLOTILLA_ENGINE_OPTIONS_INIT;
  std::int64_t small = 0, large = 0;
  options.room = 1024;
  ASSERT_EQ(flotilla_memory_needed(model_, &options, &small), FLOTILLA_OK);
  options.room = 1024 + 16;
  ASSERT_EQ(flotilla_memory_needed(model_, &options, &large), FLOTILLA_OK);
  EXPECT_EQ(large - small, 16 * 2 * 2 * 2 * 16 * 2);  // tokens, layers, keys and values, KV heads, head_dim, bytes
}

TEST_F(Embed, NullPointersAndNumbersOutOfRangeAreErrors) {
  flotilla_model* model = nullptr;
  expect_error(flotilla_model_load(nullptr, &model), FLOTILLA_INVALID_ARGUMENT, "path is null");
  expect_error(flotilla_model_load("/", nullptr), FLOTILLA_INVALID_ARGUMENT, "model is null");
  expect_error(flotilla_model_load("/none/such.gguf", &model), FLOTILLA_NOT_FOUND, "/none/such.gguf");
  ASSERT_TRUE(write_file_atomically(folder_.path() / "bad.gguf", "GGUF?").ok());
  expect_error(flotilla_model_load((folder_.path() / "bad.gguf").c_str(), &model), FLOTILLA_DATA_LOSS, "bad.gguf");
  EXPECT_EQ(model, nullptr);
  flotilla_model_free(nullptr);
  EXPECT_EQ(flotilla_engine_free(nullptr), FLOTILLA_OK);
  expect_error(flotilla_model_release_weights(nullptr), FLOTILLA_INVALID_ARGUMENT, "model is null");
  expect_error(flotilla_model_get_info(model_, nullptr), FLOTILLA_INVALID_ARGUMENT, "info is null");
  flotilla_model_info info{};
  expect_error(flotilla_model_get_info(model_, &info), FLOTILLA_INVALID_ARGUMENT,
               fmt::format("info has a struct_size of 0, expected {}", sizeof info));

  std::size_t count = 0;
  expect_error(flotilla_encode(nullptr, "a", 1, 0, nullptr, 0, &count), FLOTILLA_INVALID_ARGUMENT, "model is null");
  expect_error(flotilla_encode(model_, nullptr, 1, 0, nullptr, 0, &count), FLOTILLA_INVALID_ARGUMENT, "text is null");
  expect_error(flotilla_encode(model_, "a", 1, 0, nullptr, 0, nullptr), FLOTILLA_INVALID_ARGUMENT, "count is null");
  expect_error(flotilla_encode(model_, "a", 1, 0, nullptr, 9, &count), FLOTILLA_INVALID_ARGUMENT, "buffer is null");
  const flotilla_token ids[] = {3, -1, kRows};
  expect_error(flotilla_decode(model_, ids, 2, 0, nullptr, 0, &count), FLOTILLA_INVALID_ARGUMENT,
               "tokens[1] = -1 lies outside the vocabulary of 300");
  expect_error(flotilla_decode(model_, nullptr, 2, 0, nullptr, 0, &count), FLOTILLA_INVALID_ARGUMENT, "tokens is null");
  expect_error(flotilla_decode(model_, ids, SIZE_MAX, 0, nullptr, 0, &count), FLOTILLA_INVALID_ARGUMENT, "elements");
  const flotilla_message no_content[] = {{"user", "x"}, {"user", nullptr}};
  expect_error(flotilla_encode_chat(model_, no_content, 2, 1, nullptr, 0, &count), FLOTILLA_INVALID_ARGUMENT,
               "messages[1].content is null");
  const flotilla_message bad_role[] = {{"robot", "x"}};
  expect_error(flotilla_encode_chat(model_, bad_role, 1, 1, nullptr, 0, &count), FLOTILLA_INVALID_ARGUMENT, "robot");

  flotilla_engine* engine = nullptr;
  flotilla_engine_options options = FLOTILLA_ENGINE_OPTIONS_INIT;
  expect_error(flotilla_engine_create(nullptr, &options, &engine), FLOTILLA_INVALID_ARGUMENT, "model is null");
  expect_error(flotilla_engine_create(model_, nullptr, &engine), FLOTILLA_INVALID_ARGUMENT, "options is null");
  expect_error(flotilla_engine_create(model_, &options, nullptr), FLOTILLA_INVALID_ARGUMENT, "engine is null");
  std::int64_t bytes = 0;
  for (const std::int64_t room : {std::int64_t{0}, std::int64_t{-1}, std::numeric_limits<std::int64_t>::max()}) {
    options.room = room;
    expect_error(flotilla_memory_needed(model_, &options, &bytes), FLOTILLA_INVALID_ARGUMENT, "room = ");
  }
  options = FLOTILLA_ENGINE_OPTIONS_INIT;
  for (const std::int32_t threads : {-1, 100'000}) {
    options.threads = threads;
    expect_error(flotilla_engine_create(model_, &options, &engine), FLOTILLA_INVALID_ARGUMENT, "threads");
  }
  EXPECT_EQ(engine, nullptr);
}

TEST_F(Embed, BadSequencesTokensAndSamplingAreErrorsThatChangeNothing) {
  const flotilla_sampling sampling = sampling_of(1, 0, 1);
  const flotilla_sequence sequence = open(prompt_);
  flotilla_sequence other = 0;
  std::int32_t number = 0;
  expect_error(flotilla_open(nullptr, &other), FLOTILLA_INVALID_ARGUMENT, "engine is null");
  expect_error(flotilla_open(engine_, nullptr), FLOTILLA_INVALID_ARGUMENT, "sequence is null");
  for (const flotilla_sequence bad : {flotilla_sequence{0}, flotilla_sequence{-1}, sequence + 1, INT64_MAX}) {
    const std::string message = fmt::format("sequence {} is not open", bad);
    flotilla_sample_result result{};
    float score = 0;
    expect_error(flotilla_fork(engine_, bad, &other), FLOTILLA_NOT_FOUND, message);
    expect_error(flotilla_close(engine_, bad), FLOTILLA_NOT_FOUND, message);
    expect_error(flotilla_length(engine_, bad, &number), FLOTILLA_NOT_FOUND, message);
    expect_error(flotilla_append(engine_, bad, prompt_.data(), 1), FLOTILLA_NOT_FOUND, message);
    expect_error(flotilla_sample(engine_, &bad, &sampling, 1, &result), FLOTILLA_NOT_FOUND, message);
    expect_error(flotilla_generate(engine_, bad, &sampling, 1, nullptr, 0, nullptr, nullptr, nullptr),
                 FLOTILLA_NOT_FOUND, message);
    expect_error(flotilla_score(engine_, bad, prompt_.data(), 1, nullptr, &score), FLOTILLA_NOT_FOUND, message);
  }
  float score = 0;
  flotilla_sample_result results[2];
  expect_error(flotilla_append(engine_, sequence, nullptr, 1), FLOTILLA_INVALID_ARGUMENT, "tokens is null");
  for (const flotilla_token bad : {-1, kRows, INT32_MAX, INT32_MIN}) {
    const flotilla_token tokens[] = {1, bad};
    const std::string message = fmt::format("tokens[1] = {} lies outside the vocabulary of 300", bad);
    expect_error(flotilla_append(engine_, sequence, tokens, 2), FLOTILLA_INVALID_ARGUMENT, message);
    expect_error(flotilla_score(engine_, sequence, tokens, 2, nullptr, &score), FLOTILLA_INVALID_ARGUMENT, message);
  }
  expect_error(flotilla_score(engine_, sequence, prompt_.data(), 1, nullptr, nullptr), FLOTILLA_INVALID_ARGUMENT,
               "logprobs is null");
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const flotilla_sampling& bad : {sampling_of(-1, 0, 1), sampling_of(nan, 0, 1), sampling_of(1, -1, 1),
                                       sampling_of(1, 0, 0), sampling_of(1, 0, 1.5f), sampling_of(1, 0, nan)}) {
    EXPECT_EQ(flotilla_sample(engine_, &sequence, &bad, 1, results), FLOTILLA_INVALID_ARGUMENT);
    EXPECT_EQ(flotilla_generate(engine_, sequence, &bad, 1, nullptr, 0, nullptr, nullptr, nullptr),
              FLOTILLA_INVALID_ARGUMENT);
    EXPECT_EQ(flotilla_score(engine_, sequence, prompt_.data(), 1, &bad, &score), FLOTILLA_INVALID_ARGUMENT);
  }
  const flotilla_sequence twice[] = {sequence, sequence};
  const flotilla_sampling samplings[] = {sampling, sampling};
  expect_error(flotilla_sample(engine_, twice, samplings, 2, results), FLOTILLA_INVALID_ARGUMENT, "in the list twice");
  expect_error(flotilla_sample(engine_, nullptr, samplings, 2, results), FLOTILLA_INVALID_ARGUMENT,
               "sequences is null");
  expect_error(flotilla_sample(engine_, &sequence, nullptr, 1, results), FLOTILLA_INVALID_ARGUMENT,
               "samplings is null");
  expect_error(flotilla_sample(engine_, &sequence, &sampling, 1, nullptr), FLOTILLA_INVALID_ARGUMENT,
               "results is null");
  expect_error(flotilla_generate(engine_, sequence, nullptr, 1, nullptr, 0, nullptr, nullptr, nullptr),
               FLOTILLA_INVALID_ARGUMENT, "sampling is null");
  expect_error(flotilla_generate(engine_, sequence, &sampling, -1, nullptr, 0, nullptr, nullptr, nullptr),
               FLOTILLA_INVALID_ARGUMENT, "max_tokens = -1");
  expect_error(flotilla_generate(engine_, sequence, &sampling, 1, nullptr, 1, nullptr, nullptr, nullptr),
               FLOTILLA_INVALID_ARGUMENT, "end_tokens is null");
  flotilla_sampling unsized = sampling;
  unsized.struct_size = 0;
  expect_error(flotilla_sample(engine_, &sequence, &unsized, 1, results), FLOTILLA_INVALID_ARGUMENT, "struct_size");

  flotilla_sequence empty = 0;
  ASSERT_EQ(flotilla_open(engine_, &empty), FLOTILLA_OK);
  expect_error(flotilla_sample(engine_, &empty, &sampling, 1, results), FLOTILLA_FAILED_PRECONDITION, "empty sequence");
  expect_error(flotilla_generate(engine_, empty, &sampling, 1, nullptr, 0, nullptr, nullptr, nullptr),
               FLOTILLA_FAILED_PRECONDITION, "empty sequence");
  expect_error(flotilla_score(engine_, empty, prompt_.data(), 1, nullptr, &score), FLOTILLA_FAILED_PRECONDITION,
               "empty sequence");

  EXPECT_EQ(length(sequence), std::ssize(prompt_));
  EXPECT_EQ(generate(sequence, sampling, 5), drawn_by_the_engine(path(), prompt_, sampling, 5));
}

TEST_F(Embed, OneEngineDoesOneCallAtATime) {
  struct Seen {
    flotilla_engine* engine;
    flotilla_sequence sequence;
    std::vector<flotilla_status> statuses;
    std::string other_threads_message;
  } seen{engine_, open(prompt_), {}, {}};
  const auto on_token = [](const flotilla_sample_result*, void* user) {
    auto* from = static_cast<Seen*>(user);
    std::int32_t length = 0;
    from->statuses.push_back(flotilla_length(from->engine, from->sequence, &length));
    from->statuses.push_back(flotilla_close(from->engine, from->sequence));
    from->statuses.push_back(flotilla_engine_free(from->engine));
    std::thread([&] {
      EXPECT_STREQ(flotilla_error_message(), "");
      from->statuses.push_back(flotilla_length(from->engine, from->sequence, &length));
      from->other_threads_message = flotilla_error_message();
    }).join();
    return 0;
  };
  const flotilla_sampling sampling = sampling_of(1, 0, 1);
  ASSERT_EQ(flotilla_generate(engine_, seen.sequence, &sampling, 1, nullptr, 0, on_token, &seen, nullptr), FLOTILLA_OK);
  EXPECT_EQ(seen.statuses, std::vector<flotilla_status>(4, FLOTILLA_FAILED_PRECONDITION));
  EXPECT_THAT(seen.other_threads_message, HasSubstr("it does one at a time"));
  EXPECT_EQ(length(seen.sequence), std::ssize(prompt_) + 1);
}

TEST_F(Embed, ManyThreadsReadOneModel) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 200; ++i) {
        std::size_t count = 0;
        EXPECT_EQ(flotilla_encode(model_, "the the", 7, 0, nullptr, 0, &count), FLOTILLA_OK);
        EXPECT_EQ(count, 5u);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// What a command prints to standard output; a failure when it does not end well.
std::string output_of(const std::string& command) {
  FILE* pipe = popen(command.c_str(), "r");
  std::string output;
  char buffer[4096];
  for (std::size_t size; (size = fread(buffer, 1, sizeof buffer, pipe)) > 0;) output.append(buffer, size);
  EXPECT_EQ(pclose(pipe), 0) << command << "\n" << output;
  return output;
}

TEST(EmbedLibrary, ShowsNothingButTheFunctionsOfTheHeader) {
  const std::string symbols =
      output_of("nm -D --defined-only --format=just-symbols '" FLOTILLA_BUILD_FOLDER "/lib/libflotilla.so'");
  const std::string header = read_text_file("src/embed/include/flotilla.h").value();
  int functions = 0;
  for (std::size_t begin = 0; begin < symbols.size(); ++functions) {
    const std::size_t end = symbols.find('\n', begin);
    const std::string symbol = symbols.substr(begin, end - begin);
    begin = end + 1;
    if (symbol.starts_with("FLOTILLA_1")) continue;  // the version itself
    const std::string name = symbol.substr(0, symbol.find('@'));
    EXPECT_TRUE(name.starts_with("flotilla_")) << symbol;
    EXPECT_THAT(header, HasSubstr(name + "("));
  }
  EXPECT_GE(functions, 20);
}

TEST(EmbedLibrary, TheHeaderIsC99AndCpp) {
  for (const char* compiler : {"cc -std=c99 -x c", "c++ -std=c++11 -x c++"}) {
    EXPECT_EQ(output_of(fmt::format("echo '#include <flotilla.h>\nflotilla_sampling s = FLOTILLA_SAMPLING_INIT;' | {} "
                                    "-Wall -Wextra -pedantic -Werror -Isrc/embed/include -fsyntax-only - 2>&1",
                                    compiler)),
              "");
  }
}

// Installed, compiled by a plain compiler that finds the library through pkg-config, and run.
TEST(EmbedLibrary, TheExampleGeneratesTheTokensOfTheEngine) {
  if (!FLOTILLA_PLAIN_BUILD) GTEST_SKIP() << "a plain C program cannot use an instrumented library";
  const TemporaryFolder folder;
  const std::string prefix = (folder.path() / "installed").string();
  output_of(fmt::format("'{}' --install '{}' --component embed --prefix '{}'", FLOTILLA_CMAKE, FLOTILLA_BUILD_FOLDER,
                        prefix));
  const std::string pc = output_of(fmt::format("find '{}' -name flotilla.pc", prefix));
  const std::string libraries = fs::path(pc).parent_path().parent_path().string();
  const std::string program = (folder.path() / "complete").string();
  output_of(
      fmt::format("PKG_CONFIG_PATH='{}/pkgconfig' sh -c 'cc -std=c99 -Wall -Wextra -pedantic -Werror "
                  "examples/embed/complete.c $(pkg-config --cflags --libs flotilla) -o {}' 2>&1",
                  libraries, program));
  fs::path tiny = folder.path() / "model";
  ASSERT_NO_FATAL_FAILURE(write_model(tiny));
  std::vector<fs::path> models = {tiny};
  if (const auto packaged = packaged_model(); packaged.ok()) models.push_back(*packaged);
  for (const fs::path& path : models) {
    const std::string text = "The harbour at dawn";
    const std::string output = output_of(
        fmt::format("LD_LIBRARY_PATH='{}' '{}' '{}' '{}' 24 5 2>&1", libraries, program, path.string(), text));
    const Model model = load_model(path).value();
    flotilla_sampling sampling = FLOTILLA_SAMPLING_INIT;
    sampling.seed = 5;
    const Drawn drawn =
        drawn_by_the_engine(path, model.tokenizer->encode(text), sampling, 24, model.tokenizer->spec().eos);
    EXPECT_THAT(output, HasSubstr(fmt::format("tokens: {}\n", fmt::join(drawn.tokens, " "))));
    EXPECT_THAT(output, HasSubstr(text + model.tokenizer->decode(drawn.tokens)));
  }
}

}  // namespace
}  // namespace flotilla
