#include "serve/scheduler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <map>

#include "base/philox.h"
#include "rollout/watched_engine_for_tests.h"

namespace flotilla {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

// All that a client learns about one choice.
struct Answer {
  std::string text;
  std::vector<ScoredToken> prompt, tokens;
  std::optional<FinishReason> finish;
};

bool same_tokens(const std::vector<ScoredToken>& a, const std::vector<ScoredToken>& b) {
  return std::ranges::equal(a, b, [](const ScoredToken& x, const ScoredToken& y) {
    return x.token == y.token && x.logprob == y.logprob &&
           std::ranges::equal(x.top, y.top, [](const TokenLogprob& p, const TokenLogprob& q) {
             return p.token == q.token && p.logprob == q.logprob;
           });
  });
}
bool same_answer(const Answer& a, const Answer& b) {
  return a.text == b.text && a.finish == b.finish && same_tokens(a.prompt, b.prompt) && same_tokens(a.tokens, b.tokens);
}

// Collects events and checks their order.
struct Client {
  std::map<std::int32_t, Answer> answers;
  std::optional<Status> end;
  GenerationUsage usage;

  void take(const GenerationEvent& event) {
    EXPECT_FALSE(end.has_value()) << "an event after the end";
    if (event.end) {
      end = event.end;
      usage = event.usage;
      return;
    }
    Answer& answer = answers[event.choice];
    EXPECT_FALSE(answer.finish.has_value()) << "an event of a choice that has ended";
    answer.text += event.text;
    answer.prompt.insert(answer.prompt.end(), event.prompt.begin(), event.prompt.end());
    answer.tokens.insert(answer.tokens.end(), event.tokens.begin(), event.tokens.end());
    answer.finish = event.finish;
  }
};

struct Server {
  std::shared_ptr<const Tokenizer> tokenizer = toy_tokenizer();
  std::unique_ptr<Engine> engine;
  std::unique_ptr<Scheduler> scheduler;
  std::map<RequestId, Client> clients;

  explicit Server(std::int64_t kv_blocks = 1000, SchedulerLimits limits = {}) : engine(toy_engine(kv_blocks)) {
    scheduler = std::make_unique<Scheduler>(*engine, *tokenizer, limits);
  }
  void deliver() {
    for (const GenerationEvent& event : scheduler->take_events()) clients[event.request].take(event);
  }
  void step(std::chrono::nanoseconds now = 0s) {
    scheduler->step(now);
    deliver();
  }
  void run() {
    for (int passes = 0; !scheduler->idle(); ++passes) {
      ASSERT_LT(passes, 100000);
      step();
    }
  }
  void expect_all_given_back() const {
    EXPECT_TRUE(scheduler->idle());
    EXPECT_EQ(engine->usage().blocks_used, 0);
    EXPECT_EQ(engine->usage().sequences, 0);
    EXPECT_EQ(scheduler->counts().queued, 0);
    EXPECT_EQ(scheduler->counts().running, 0);
    EXPECT_EQ(scheduler->counts().active_sequences, 0);
  }
};

Client alone(const GenerationRequest& request) {
  Server server;
  EXPECT_TRUE(server.scheduler->submit(RequestId(1), request, 0s).ok());
  server.run();
  server.expect_all_given_back();
  return server.clients[RequestId(1)];
}

GenerationRequest simple(std::vector<TokenId> prompt = {1, 3, 4, 5}, std::int32_t max_tokens = 12) {
  return {.prompts = {std::move(prompt)}, .max_tokens = max_tokens, .seed = 7};
}

GenerationRequest random_request(PhiloxStream& random) {
  const auto below = [&](std::uint32_t n) { return random.next_u32() % n; };
  GenerationRequest request;
  request.choices = below(3) == 0 ? 1 + static_cast<std::int32_t>(below(4)) : 1;
  for (std::uint32_t p = 0; p < 1 + below(2) * below(3); ++p) {
    std::vector<TokenId> prompt(1 + below(below(4) == 0 ? 90 : 20));
    for (TokenId& token : prompt) token = static_cast<TokenId>(below(20));
    request.prompts.push_back(std::move(prompt));
  }
  request.score_prompt = below(4) == 0;
  std::size_t longest = 0;
  for (const auto& prompt : request.prompts) longest = std::max(longest, prompt.size());
  const bool only_scores = request.score_prompt && below(2) == 0;
  request.max_tokens =
      only_scores ? 0 : static_cast<std::int32_t>(1 + below(static_cast<std::uint32_t>(128 - longest)));
  request.seed = random.next_u32();
  request.top = static_cast<std::int32_t>(below(4));
  request.sampling.temperature = below(5) == 0 ? 0.0f : 1.2f;
  if (below(3) == 0) request.sampling.top_k = 5;
  if (below(3) == 0) request.stop_strings = {"ab", "c?"};
  if (below(2) == 0) request.stop_tokens = {0, 2};
  return request;
}

TEST(Scheduler, AnAnswerIsWhatTheEngineSamplesTokenByToken) {
  for (const std::uint64_t seed : {std::uint64_t{0}, std::uint64_t{12345}, ~std::uint64_t{0}}) {
    GenerationRequest request = simple();
    request.seed = seed;
    const Client client = alone(request);
    ASSERT_TRUE(client.end.has_value());
    EXPECT_TRUE(client.end->ok());
    const auto engine = toy_engine();
    const SequenceId sequence = engine->open().value();
    std::vector<TokenId> next = request.prompts[0];
    std::string text;
    for (std::uint32_t position = 4; position < 16; ++position) {
      const Readout readout{.offset = static_cast<std::int32_t>(next.size()) - 1,
                            .sampling = {},
                            .key = {.seed = seed, .group = 0, .episode = 0, .position = position},
                            .target = {}};
      const Chunk chunk{sequence, next, {&readout, 1}};
      const ReadoutResult result = engine->forward({&chunk, 1}).value()[0];
      const ScoredToken& token = client.answers.at(0).tokens.at(position - 4);
      EXPECT_EQ(token.token, result.token);
      EXPECT_EQ(token.logprob, result.logprob);
      next = {result.token};
      text += toy_tokenizer()->decode(next);
    }
    EXPECT_EQ(client.answers.at(0).text, text);
    EXPECT_EQ(client.answers.at(0).finish, FinishReason::kLength);
    EXPECT_EQ(client.usage.prompt_tokens, 4);
    EXPECT_EQ(client.usage.completion_tokens, 12);
  }
}

TEST(Scheduler, RandomArrivalsCancellationsAndAScarcePoolChangeNoAnswer) {
  std::int64_t preemptions = 0, cancelled_requests = 0, completed = 0;
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    PhiloxStream random(seed, 1);
    const auto below = [&](std::uint32_t n) { return random.next_u32() % n; };
    // 128 tokens of context are 8 blocks.
    Server server(8 + below(6), {.sequences = 1 + static_cast<std::int32_t>(below(8)),
                                 .queue = 100,
                                 .rows_per_call = 1 + static_cast<std::int32_t>(below(24))});
    std::map<RequestId, GenerationRequest> asked;
    std::map<RequestId, bool> left;
    for (std::uint64_t next = 1; next <= 12 || !server.scheduler->idle();) {
      if (next <= 12 && (server.scheduler->idle() || below(4) == 0)) {
        const RequestId id(next++);
        asked[id] = random_request(random);
        ASSERT_TRUE(server.scheduler->submit(id, asked[id], 0s).ok());
      }
      if (below(25) == 0) {
        const RequestId id(1 + below(static_cast<std::uint32_t>(next)));
        if (asked.contains(id) && !server.clients[id].end) {
          left[id] = true;
          server.scheduler->end(id, cancelled("the client left"));
        }
      }
      server.step();
    }
    server.expect_all_given_back();
    preemptions += server.scheduler->counts().preemptions;
    for (const auto& [id, request] : asked) {
      const Client& client = server.clients[id];
      ASSERT_TRUE(client.end.has_value());
      const Client expected = alone(request);
      if (left[id]) {
        ++cancelled_requests;
        EXPECT_EQ(client.end->code(), StatusCode::kCancelled);
        for (const auto& [choice, answer] : client.answers) {
          EXPECT_TRUE(expected.answers.at(choice).text.starts_with(answer.text));
        }
        continue;
      }
      ++completed;
      EXPECT_TRUE(client.end->ok()) << client.end->to_string();
      ASSERT_EQ(client.answers.size(), request.prompts.size() * static_cast<std::size_t>(request.choices));
      for (const auto& [choice, answer] : client.answers) {
        EXPECT_TRUE(answer.finish.has_value());
        EXPECT_TRUE(same_answer(answer, expected.answers.at(choice))) << "choice " << choice;
      }
      EXPECT_EQ(client.usage.completion_tokens, expected.usage.completion_tokens);
    }
  }
  // Otherwise the simulation would show nothing.
  EXPECT_GT(preemptions, 20);
  EXPECT_GT(cancelled_requests, 20);
  EXPECT_GT(completed, 300);
}

TEST(Scheduler, ChoicesDifferAndEachIsTheSameInEveryRequest) {
  GenerationRequest request = simple();
  request.choices = 3;
  const Client three = alone(request);
  ASSERT_THAT(three.answers, SizeIs(3));
  EXPECT_NE(three.answers.at(0).text, three.answers.at(1).text);
  request.choices = 1;
  EXPECT_TRUE(same_answer(alone(request).answers.at(0), three.answers.at(0)));
  request.prompts.push_back({4});
  const Client two_prompts = alone(request);
  ASSERT_THAT(two_prompts.answers, SizeIs(2));
  EXPECT_TRUE(same_answer(two_prompts.answers.at(0), three.answers.at(0)));
  EXPECT_TRUE(same_answer(two_prompts.answers.at(1), alone(simple({4})).answers.at(0)));
}

TEST(Scheduler, ThePromptsScoresAreTheLogprobsOfItsTokens) {
  GenerationRequest request = simple({1, 3, 4, 5, 6, 7, 8, 9, 10, 3, 4, 5, 6, 3, 4, 5, 6, 1}, 0);
  request.score_prompt = true;
  request.top = 2;
  request.choices = 2;
  const Client client = alone(request);
  const auto engine = toy_engine();
  const std::vector<TokenId>& prompt = request.prompts[0];
  for (std::int32_t choice = 0; choice < 2; ++choice) {
    const Answer& answer = client.answers.at(choice);
    ASSERT_EQ(answer.prompt.size(), prompt.size());
    EXPECT_EQ(answer.prompt[0].logprob, std::nullopt);
    for (std::size_t i = 1; i < prompt.size(); ++i) {
      const auto logprobs = engine->logprobs(std::span(prompt).first(i)).value();
      EXPECT_EQ(answer.prompt[i].token, prompt[i]);
      EXPECT_EQ(answer.prompt[i].logprob, logprobs[static_cast<std::size_t>(prompt[i])]);
      EXPECT_EQ(answer.prompt[i].top.at(0).logprob, *std::ranges::max_element(logprobs));
    }
    EXPECT_EQ(answer.text, "");
    EXPECT_EQ(answer.finish, FinishReason::kLength);
  }
  EXPECT_EQ(client.usage.completion_tokens, 0);
}

TEST(Scheduler, AStopTokenEndsTheTextAndCountsAsGenerated) {
  GenerationRequest request = simple();
  const Client whole = alone(request);
  request.stop_tokens = {whole.answers.at(0).tokens[3].token};
  const Client client = alone(request);
  const Answer& answer = client.answers.at(0);
  EXPECT_EQ(answer.finish, FinishReason::kStop);
  EXPECT_LE(answer.tokens.size(), 3u);
  EXPECT_TRUE(whole.answers.at(0).text.starts_with(answer.text));
  EXPECT_EQ(client.usage.completion_tokens, std::ssize(answer.tokens) + 1);
}

TEST(Scheduler, ALongPromptDoesNotHoldUpTheOthers) {
  Server server(1000, {.sequences = 8, .queue = 8, .rows_per_call = 4});
  ASSERT_TRUE(server.scheduler->submit(RequestId(1), simple({1, 3}, 60), 0s).ok());
  server.step();
  ASSERT_TRUE(server.scheduler->submit(RequestId(2), simple(std::vector<TokenId>(100, 4), 4), 0s).ok());
  for (int pass = 0; pass < 20; ++pass) {
    const auto before = server.scheduler->counts().tokens_generated;
    server.step();
    EXPECT_EQ(server.scheduler->counts().tokens_generated, before + 1) << "pass " << pass;
  }
  server.run();
  EXPECT_TRUE(server.clients[RequestId(2)].end->ok());
}

TEST(Scheduler, AFullQueueRefusesAndForgets) {
  Server server(1000, {.sequences = 1, .queue = 2, .rows_per_call = 4});
  for (const std::uint64_t id : {1, 2}) ASSERT_TRUE(server.scheduler->submit(RequestId(id), simple(), 0s).ok());
  EXPECT_EQ(server.scheduler->submit(RequestId(3), simple(), 0s).code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(server.scheduler->counts().queued, 2);
  server.step();  // the first has begun
  EXPECT_TRUE(server.scheduler->submit(RequestId(3), simple(), 0s).ok());
  server.run();
  server.expect_all_given_back();
  EXPECT_THAT(server.clients, SizeIs(3));
}

TEST(Scheduler, ATimeLimitEndsARequestInTheQueueAndInTheBatch) {
  Server server(1000, {.sequences = 1, .queue = 8, .rows_per_call = 4});
  GenerationRequest request = simple({1, 3}, 100);
  request.timeout = 5s;
  ASSERT_TRUE(server.scheduler->submit(RequestId(1), request, 10s).ok());
  ASSERT_TRUE(server.scheduler->submit(RequestId(2), request, 12s).ok());
  server.step(14s);
  EXPECT_FALSE(server.clients[RequestId(1)].end.has_value());
  server.step(15s);
  EXPECT_EQ(server.clients[RequestId(1)].end->code(), StatusCode::kDeadlineExceeded);
  EXPECT_EQ(server.scheduler->counts().running, 1) << "the second takes its place";
  server.step(17s);
  EXPECT_EQ(server.clients[RequestId(2)].end->code(), StatusCode::kDeadlineExceeded);
  server.expect_all_given_back();
}

TEST(Scheduler, AllCanBeEndedAtOnce) {
  Server server(1000, {.sequences = 2, .queue = 8, .rows_per_call = 8});
  for (const std::uint64_t id : {1, 2, 3}) ASSERT_TRUE(server.scheduler->submit(RequestId(id), simple(), 0s).ok());
  server.step();
  server.scheduler->end_all(unavailable("stopping"));
  server.deliver();
  for (const auto& [id, client] : server.clients) EXPECT_EQ(client.end->code(), StatusCode::kUnavailable);
  EXPECT_THAT(server.clients, SizeIs(3));
  server.expect_all_given_back();
}

TEST(Scheduler, WhatCanNeverBeComputedIsRefusedWithTheReason) {
  Server server(4);  // 64 tokens
  EXPECT_EQ(server.scheduler->context(), 65) << "the last token needs no place";
  const auto refusal = [&](const GenerationRequest& request) {
    const Status status = server.scheduler->submit(RequestId(9), request, 0s);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    return status.message();
  };
  EXPECT_THAT(refusal({}), HasSubstr("no prompt"));
  EXPECT_THAT(refusal(simple({})), HasSubstr("empty"));
  EXPECT_THAT(refusal(simple({1, 20})), HasSubstr("token 20 lies outside the vocabulary of 20"));
  EXPECT_THAT(refusal(simple({1, -1})), HasSubstr("token -1"));
  EXPECT_THAT(refusal(simple({1, 3}, 64)), HasSubstr("65 that can be served"));
  GenerationRequest request = simple();
  request.sampling.temperature = std::numeric_limits<float>::quiet_NaN();
  EXPECT_THAT(refusal(request), HasSubstr("temperature"));
  request = simple();
  request.stop_strings = {"a", ""};
  EXPECT_THAT(refusal(request), HasSubstr("stop string"));
  request = simple();
  request.choices = 0;
  EXPECT_THAT(refusal(request), HasSubstr("0 choices"));
  server.expect_all_given_back();
  ASSERT_TRUE(server.scheduler->submit(RequestId(9), simple({1, 3}, 63), 0s).ok());
  server.run();
  EXPECT_EQ(server.clients[RequestId(9)].usage.completion_tokens, 63) << "the whole pool for one request";
  EXPECT_TRUE(server.clients[RequestId(9)].end->ok());
}

TEST(Scheduler, ASequenceThatCannotBeComputedEndsItsOwnRequestOnly) {
  GenerationRequest good = simple({1, 3, 4});
  good.stop_tokens = {19};
  good.sampling.temperature = 0;
  const Client expected = alone(good);
  Server server;
  server.scheduler.reset();
  auto engine = std::make_unique<WatchedEngine>();
  // As activations that overflow do.
  engine->before_forward = [](std::span<const Chunk> chunks) {
    const bool overflows = std::ranges::any_of(
        chunks, [](const Chunk& chunk) { return std::ranges::find(chunk.tokens, 19) != chunk.tokens.end(); });
    return overflows ? data_loss("layer 1: NaN") : ok_status();
  };
  server.engine = std::move(engine);
  server.scheduler = std::make_unique<Scheduler>(*server.engine, *server.tokenizer, SchedulerLimits{});
  GenerationRequest bad = simple({1, 3, 19, 4});
  bad.choices = 2;
  ASSERT_TRUE(server.scheduler->submit(RequestId(1), bad, 0s).ok());
  ASSERT_TRUE(server.scheduler->submit(RequestId(2), good, 0s).ok());
  server.run();
  EXPECT_EQ(server.clients[RequestId(1)].end->code(), StatusCode::kDataLoss);
  EXPECT_TRUE(server.clients[RequestId(2)].end->ok());
  EXPECT_TRUE(same_answer(server.clients[RequestId(2)].answers.at(0), expected.answers.at(0)));
  server.expect_all_given_back();
}

}  // namespace
}  // namespace flotilla
