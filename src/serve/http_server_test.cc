#include "serve/http_server.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <list>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>

#include "base/raw_client_for_tests.h"
#include "rollout/toy_for_tests.h"
#include "serve/gate_clock_for_tests.h"
#include "serve/http_reply.h"

namespace flotilla {
namespace {

using namespace std::chrono_literals;
using nlohmann::json;
using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

std::string post(std::string_view path, const json& body, std::string_view fields = "Connection: close\r\n") {
  const std::string text = body.dump();
  return fmt::format(
      "POST {} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {}\r\n{}\r\n{}", path,
      text.size(), fields, text);
}
std::string get(std::string_view path, std::string_view fields = "Connection: close\r\n") {
  return fmt::format("GET {} HTTP/1.1\r\nHost: localhost\r\n{}\r\n", path, fields);
}
json completion(int max_tokens = 5) {
  return {{"model", "toy"}, {"prompt", {1, 3, 4}}, {"max_tokens", max_tokens}, {"seed", 4}};
}

struct TestServer {
  std::shared_ptr<const Tokenizer> tokenizer = toy_tokenizer();
  std::unique_ptr<Engine> engine = toy_engine();
  ServeMetrics metrics;
  GenerationService service;
  ServedModel model{.name = "toy", .fingerprint = "f", .tokenizer = tokenizer.get(), .vocabulary = 20, .context = 128};
  std::unique_ptr<HttpServer> server;

  explicit TestServer(HttpOptions options = {}, std::string name = "toy", const Clock& clock = system_clock())
      : service(*engine, *tokenizer, {}, metrics, clock) {
    model.name = std::move(name);
    options.port = 0;
    server = HttpServer::start(options, model, service, metrics).value();
  }
  std::string ask(std::string_view request) { return RawClient(server->port()).send(request).read(); }
};

// Waits for what another thread is about to do; the deadline is only for a failure.
bool eventually(const std::function<bool()>& condition, std::chrono::seconds deadline = 20s) {
  const auto end = std::chrono::steady_clock::now() + deadline;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(5ms);
  }
  return true;
}

std::string body_of(const std::string& answer) { return answer.substr(answer.find("\r\n\r\n") + 4); }

TEST(HttpServer, AnswersACompletion) {
  TestServer test;
  const std::string answer = test.ask(post("/v1/completions", completion()));
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 200 OK\r\n"));
  const json body = json::parse(body_of(answer));
  EXPECT_EQ(body["object"], "text_completion");
  EXPECT_EQ(body["model"], "toy");
  EXPECT_EQ(body["system_fingerprint"], "f");
  EXPECT_EQ(body["usage"], (json{{"prompt_tokens", 3},
                                 {"completion_tokens", body["usage"]["completion_tokens"]},
                                 {"total_tokens", 3 + body["usage"]["completion_tokens"].get<int>()}}));
}

TEST(HttpServer, AConnectionCarriesManyRequestsAlsoSentAtOnce) {
  TestServer test;
  RawClient client(test.server->port());
  const std::string request = post("/v1/completions", completion(), "");
  client.send(request);
  const std::string first = client.read("}}");
  client.send(request + request + get("/health"));
  const auto text_of = [](const std::string& answer) { return json::parse(body_of(answer))["choices"]; };
  EXPECT_EQ(text_of(client.read("}}")), text_of(first));
  EXPECT_EQ(text_of(client.read("}}")), text_of(first));
  EXPECT_THAT(client.read(), EndsWith(R"({"status":"ok"})"));
}

TEST(HttpServer, ARequestThatComesDuringAnAnswerWaitsForIt) {
  TestServer test;
  json body = completion(100);
  body["stream"] = true;
  body["n"] = 16;
  RawClient client(test.server->port());
  client.send(post("/v1/completions", body, ""));
  client.read("data: ");
  client.send(get("/health"));
  EXPECT_THAT(client.read("data: [DONE]\n\n"), EndsWith("data: [DONE]\n\n"));
  EXPECT_THAT(client.read(), EndsWith(R"({"status":"ok"})"));
}

TEST(HttpServer, AnOldClientGetsItsStreamUntilTheConnectionCloses) {
  TestServer test;
  json body = completion();
  body["stream"] = true;
  std::string request = post("/v1/completions", body, "");
  request.replace(request.find("HTTP/1.1"), 8, "HTTP/1.0");
  const std::string answer = test.ask(request);
  EXPECT_THAT(answer, HasSubstr("Connection: close"));
  EXPECT_THAT(answer, Not(HasSubstr("Transfer-Encoding")));
  EXPECT_THAT(body_of(answer), StartsWith("data: {"));
  EXPECT_THAT(answer, EndsWith("data: [DONE]\n\n"));
}

TEST(HttpServer, ABodyMayComeInChunksAndAfterAContinue) {
  TestServer test;
  RawClient client(test.server->port());
  client.send(
      "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json; charset=utf-8\r\n"
      "Transfer-Encoding: chunked\r\nExpect: 100-continue\r\nConnection: close\r\n\r\n");
  EXPECT_EQ(client.read("\r\n\r\n"), "HTTP/1.1 100 Continue\r\n\r\n");
  const std::string body = completion().dump();
  client.send(http_chunk(body.substr(0, 10)));
  client.send(http_chunk(body.substr(10)));
  client.send(kHttpLastChunk);
  EXPECT_THAT(client.read(), StartsWith("HTTP/1.1 200 OK"));
}

TEST(HttpServer, WhatIsNotHttpIsToldSo) {
  TestServer test;
  EXPECT_THAT(test.ask("nonsense\r\n\r\n"), StartsWith("HTTP/1.1 400"));
  EXPECT_THAT(test.ask("GET / HTTP/9.9\r\n\r\n"), StartsWith("HTTP/1.1 400"));
  EXPECT_THAT(test.ask("POST /v1/completions HTTP/1.1\r\nContent-Length: -5\r\n\r\n"), StartsWith("HTTP/1.1 400"));
  EXPECT_THAT(test.ask("GET /health HTTP/1.1\r\nX: " + std::string(20000, 'x') + "\r\n\r\n"),
              StartsWith("HTTP/1.1 431"));
  EXPECT_THAT(test.ask("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                       "Transfer-Encoding: chunked\r\n\r\nzz\r\n"),
              StartsWith("HTTP/1.1 400"));
  EXPECT_THAT(test.ask(get("/health")), StartsWith("HTTP/1.1 200")) << "the server is there still";
}

TEST(HttpServer, ALargeBodyIsRefusedBeforeAndWhileItComes) {
  HttpOptions options;
  options.body_bytes_max = 1000;
  TestServer test(options);
  json body = completion();
  body["user"] = std::string(1000, 'u');
  EXPECT_THAT(test.ask(post("/v1/completions", body)), StartsWith("HTTP/1.1 413"));
  const std::string head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n";
  const std::string answer =
      test.ask(head + "Transfer-Encoding: chunked\r\n\r\n" + http_chunk(body.dump()) + std::string(kHttpLastChunk));
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 413"));
  EXPECT_EQ(json::parse(body_of(answer))["error"]["code"], "body_too_large");
}

TEST(HttpServer, PathsMethodsTypesAndHostsAreChecked) {
  TestServer test;
  EXPECT_THAT(test.ask(get("/")), StartsWith("HTTP/1.1 404"));
  EXPECT_THAT(test.ask(get("/health?verbose=1")), StartsWith("HTTP/1.1 200"));
  const std::string wrong_method = test.ask(get("/v1/completions"));
  EXPECT_THAT(wrong_method, StartsWith("HTTP/1.1 405"));
  EXPECT_THAT(wrong_method, HasSubstr("\r\nAllow: POST\r\n"));
  RawClient client(test.server->port());
  client.send("HEAD /health HTTP/1.1\r\nHost: localhost\r\n\r\n" + get("/health"));
  EXPECT_THAT(client.read("\r\n\r\n"), StartsWith("HTTP/1.1 405"));
  EXPECT_THAT(client.read(), StartsWith("HTTP/1.1 200")) << "no body stands between";
  EXPECT_THAT(test.ask(get("/v1/models/toy")), HasSubstr("\"id\":\"toy\""));
  EXPECT_THAT(test.ask(get("/v1/models/no")), StartsWith("HTTP/1.1 404"));
  EXPECT_THAT(test.ask(get("/metrics")), HasSubstr("flotilla_kv_blocks 1000\n"));
  EXPECT_THAT(test.ask("GET /health HTTP/1.1\r\nHost: example.org\r\nConnection: close\r\n\r\n"),
              StartsWith("HTTP/1.1 403"));
  EXPECT_THAT(test.ask("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{}"),
              StartsWith("HTTP/1.1 415"));
}

TEST(HttpServer, AModelIsFoundUnderItsNameHoweverThePathWritesIt) {
  TestServer test({}, "owner/run@12 \"é\"");
  for (const char* path : {"owner/run@12%20%22%C3%A9%22", "owner%2Frun%4012%20%22%c3%a9%22?x=1"}) {
    const std::string answer = test.ask(get(std::string("/v1/models/") + path));
    EXPECT_THAT(answer, StartsWith("HTTP/1.1 200")) << path;
    EXPECT_EQ(json::parse(body_of(answer))["id"], test.model.name);
  }
  for (const char* path : {"%", "a%2", "%zz", "%+1", "%2"}) {
    const std::string answer = test.ask(get(std::string("/v1/models/") + path));
    EXPECT_THAT(answer, StartsWith("HTTP/1.1 400")) << path;
    EXPECT_EQ(json::parse(body_of(answer))["error"]["code"], "invalid_url");
  }
  EXPECT_THAT(test.ask(get("/v1/models/owner%252Frun%4012")), StartsWith("HTTP/1.1 404")) << "decoded once";
}

TEST(HttpServer, AModelsNameHasToBeUtf8) {
  TestServer test;
  ServedModel model = test.model;
  model.name = "caf\xE9";
  const auto refused = HttpServer::start({.port = 0}, model, test.service, test.metrics);
  EXPECT_EQ(refused.status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(refused.status().message(), HasSubstr("not UTF-8"));
}

TEST(HttpServer, ATokenIsNeededWhereOneIsSet) {
  HttpOptions options;
  options.token = "secret";
  TestServer test(options);
  const std::string close = "Connection: close\r\n";
  for (const char* wrong : {"", "Authorization: Bearer \r\n", "Authorization: Bearer secre\r\n",
                            "Authorization: Basic secret\r\n", "Authorization: secret\r\n"}) {
    const std::string answer = test.ask(get("/v1/models", wrong + close));
    EXPECT_THAT(answer, StartsWith("HTTP/1.1 401")) << wrong;
    EXPECT_THAT(answer, HasSubstr("WWW-Authenticate: Bearer"));
    EXPECT_THAT(answer, Not(HasSubstr("secret")));
  }
  EXPECT_THAT(test.ask(get("/v1/models", "Authorization: Bearer secret\r\n" + close)), StartsWith("HTTP/1.1 200"));
  EXPECT_THAT(test.ask(get("/health")), StartsWith("HTTP/1.1 200")) << "of which nobody learns anything";
}

TEST(HttpServer, OtherMachinesAreServedWithATokenOnly) {
  TestServer test;
  HttpOptions options{.address = "0.0.0.0", .port = 0};
  const auto refused = HttpServer::start(options, test.model, test.service, test.metrics);
  EXPECT_EQ(refused.status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(refused.status().message(), HasSubstr("token"));
  options.token = "t";
  EXPECT_TRUE(HttpServer::start(options, test.model, test.service, test.metrics).ok());
  options.address = "localhost";
  EXPECT_THAT(HttpServer::start(options, test.model, test.service, test.metrics).status().message(),
              HasSubstr("no IP address"));
  options = {.address = "127.0.0.1", .port = test.server->port()};
  EXPECT_EQ(HttpServer::start(options, test.model, test.service, test.metrics).status().code(),
            StatusCode::kUnavailable);
}

TEST(HttpServer, TooManyConnectionsAreToldToComeAgain) {
  HttpOptions options;
  options.connections_max = 1;
  TestServer test(options);
  RawClient first(test.server->port());
  first.send(get("/health", ""));
  EXPECT_THAT(first.read("}"), StartsWith("HTTP/1.1 200"));
  const std::string answer = test.ask("");
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 503"));
  EXPECT_THAT(answer, HasSubstr("Retry-After: 1"));
}

TEST(HttpServer, ConnectionsThatAreRefusedAreFewAndDoNotCount) {
  HttpOptions options;
  options.connections_max = 1;
  TestServer test(options);
  std::optional<RawClient> served(test.server->port());
  served->send(get("/health", ""));
  EXPECT_THAT(served->read("}"), StartsWith("HTTP/1.1 200"));
  std::list<RawClient> refused;  // and they stay
  for (int i = 0; i < 16; ++i) {
    refused.emplace_back(test.server->port());
    EXPECT_THAT(refused.back().read("}}"), StartsWith("HTTP/1.1 503"));
  }
  EXPECT_EQ(test.ask(""), "") << "closed without a word";
  served.reset();
  // Before the 5 s are over for which the server waits for those that it refused.
  EXPECT_TRUE(eventually([&] { return test.ask(get("/health")).starts_with("HTTP/1.1 200"); }, 3s));
}

TEST(HttpServer, ASilentClientIsLeftAlone) {
  HttpOptions options;
  options.idle_timeout = options.client_timeout = 50ms;
  TestServer test(options);
  EXPECT_EQ(test.ask(""), "");
  EXPECT_EQ(test.ask("GET /hea"), "");
  EXPECT_EQ(test.ask("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: "
                     "application/json\r\nContent-Length: 9\r\n\r\n{"),
            "");
}

// The waits here are what is tested: each is far below the limit, all together are above it.
TEST(HttpServer, AClientMaySendSlowlyAsLongAsItSends) {
  HttpOptions options;
  options.client_timeout = 1s;
  TestServer test(options);
  RawClient client(test.server->port());
  std::string request = post("/v1/completions", completion());
  const std::string last = request.substr(request.size() - 8);
  client.send(request.substr(0, request.size() - 8));
  for (const char byte : last) {
    std::this_thread::sleep_for(200ms);
    client.send({&byte, 1});
  }
  EXPECT_THAT(client.read(), StartsWith("HTTP/1.1 200"));
}

TEST(HttpServer, AClientMayTakeItsAnswerSlowlyAsLongAsItTakesSome) {
  HttpOptions options;
  options.client_timeout = 1s;
  TestServer test(options);
  const json body = {{"model", "toy"}, {"prompt", json(127, kToyA)}, {"n", 128}, {"max_tokens", 0}, {"logprobs", 5},
                     {"echo", true}};
  RawClient client(test.server->port(), true);
  client.send(post("/v1/completions", body));
  for (int pause = 0; pause < 3; ++pause) {
    std::this_thread::sleep_for(500ms);
    std::size_t count = 1, taken = 0;
    while (count > 0 && taken < 700'000) taken += count = client.take(4096);
  }
  const std::string answer = client.read();
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 200"));
  EXPECT_GT(answer.size(), 2u << 20) << "more than the sockets hold";
  EXPECT_TRUE(json::accept(body_of(answer)));
}

// Each round's answer has some 100,000 logprobs. An answer made in one go lets others pass once or twice, at its ends.
TEST(HttpServer, AnotherClientIsServedWhileALargeAnswerIsMade) {
  TestServer test;
  const json body = {{"model", "toy"}, {"prompt", json(127, kToyA)}, {"n", 128}, {"max_tokens", 0}, {"logprobs", 5},
                     {"echo", true}};
  RawClient other(test.server->port());
  int between = 0;  // answers to the other client after the service is done and before the large answer is made
  for (int round = 1; round <= 20 && between < 10; ++round) {
    RawClient large(test.server->port());
    large.send(post("/v1/completions", body));
    between = 0;
    for (bool made = false; !made;) {
      const std::string metrics = other.send(get("/metrics", "")).read("flotilla_request_seconds_count");
      const auto says = [&](std::string_view line) { return metrics.find(line) != std::string::npos; };
      made = says(fmt::format("outcome=\"completed\"}} {}\n", round));
      between += !made && says(fmt::format("flotilla_prompt_tokens_total {}\n", 127 * round)) &&
                 says("flotilla_requests_queued 0\n") && says("flotilla_requests_running 0\n");
    }
    EXPECT_THAT(large.read(), StartsWith("HTTP/1.1 200"));
  }
  EXPECT_GE(between, 10);
}

TEST(HttpServer, AClientThatLeavesIsNoticedBehindItsNextRequest) {
  GateClock clock;
  TestServer test({}, "toy", clock);
  {
    RawClient client(test.server->port());
    client.send(post("/v1/completions", completion(), ""));
    clock.await_other();  // the request is with the service
    client.send("GET");
  }
  EXPECT_TRUE(eventually([&] { return test.metrics.text().find("outcome=\"cancelled\"} 1\n") != std::string::npos; }));
  clock.open();
}

TEST(HttpServer, OnlyTokensCountAsFirstTokens) {
  TestServer test;
  json body = completion(0);
  body["echo"] = true;
  body["logprobs"] = 0;
  EXPECT_THAT(test.ask(post("/v1/completions", body)), StartsWith("HTTP/1.1 200"));
  EXPECT_THAT(test.metrics.text(), HasSubstr("flotilla_first_token_seconds_count 0\n"));
  body = completion();
  body["n"] = 16;
  EXPECT_THAT(test.ask(post("/v1/completions", body)), StartsWith("HTTP/1.1 200"));
  EXPECT_THAT(test.metrics.text(), HasSubstr("flotilla_first_token_seconds_count 1\n"));
}

TEST(HttpServer, WhatAStopEndsHasNotFailed) {
  TestServer test;
  test.service.stop(0s);
  const std::string answer = test.ask(post("/v1/completions", completion()));
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 503"));
  EXPECT_THAT(answer, HasSubstr("Retry-After: 1"));
  EXPECT_THAT(test.metrics.text(), HasSubstr("outcome=\"failed\"} 0\n"));
  EXPECT_THAT(test.metrics.text(), HasSubstr("outcome=\"cancelled\"} 1\n"));
}

TEST(HttpServer, AnswersEndAfterAStopAndNewRequestsAreRefused) {
  GateClock clock;
  clock.open();
  TestServer test({}, "toy", clock);
  RawClient idle(test.server->port());
  idle.send(get("/health", ""));
  idle.read("}");
  json body = completion(100);
  body["stream"] = true;
  body["n"] = 8;
  auto streaming = std::make_unique<RawClient>(test.server->port());
  streaming->send(post("/v1/completions", body, ""));
  streaming->read("data: ");
  const std::string request = post("/v1/completions", completion(), "Expect: 100-continue\r\n");
  const std::size_t head_bytes = request.find("\r\n\r\n") + 4;
  auto late = std::make_unique<RawClient>(test.server->port());
  late->send(request.substr(0, head_bytes));
  EXPECT_THAT(late->read("\r\n\r\n"), StartsWith("HTTP/1.1 100"));
  std::string refused, streamed;
  std::jthread client([&] {
    clock.await_maker();  // in the stop
    refused = late->send(request.substr(head_bytes)).read();
    late.reset();
    streamed = streaming->read();
    streaming.reset();
  });
  test.server->stop(60s);
  client.join();
  EXPECT_THAT(refused, StartsWith("HTTP/1.1 503"));
  EXPECT_THAT(refused, HasSubstr("the server is stopping"));
  EXPECT_THAT(streamed, HasSubstr("data: [DONE]\n\n"));
  EXPECT_EQ(idle.read(), "") << "a connection without a request is closed";
  EXPECT_EQ(test.engine->usage().sequences, 0);
}

TEST(HttpServer, AServerThatGoesAwayEndsWhatItWasAsked) {
  TestServer test;
  json body = completion(100);
  body["stream"] = true;
  body["n"] = 64;
  RawClient client(test.server->port());
  client.send(post("/v1/completions", body, ""));
  client.read("data: ");
  test.server.reset();
  client.read();
  test.service.stop(60s);
  EXPECT_EQ(test.engine->usage().sequences, 0);
}

TEST(HttpReply, SecretsAndHostsAreCompared) {
  EXPECT_TRUE(same_secret("abc", "abc"));
  for (const char* other : {"", "ab", "abd", "abcd"}) EXPECT_FALSE(same_secret("abc", other));
  for (const char* own : {"localhost", "localhost:80", "127.0.0.1", "127.1.2.3:8080", "[::1]", "[::1]:5"}) {
    EXPECT_TRUE(names_loopback(own)) << own;
  }
  for (const char* foreign :
       {"", "example.org", "localhost.example.org", "127.0.0.1.example.org", "128.0.0.1", "[::2]", "::2:1"}) {
    EXPECT_FALSE(names_loopback(foreign)) << foreign;
  }
}

TEST(ServeMetrics, TheTextIsThatOfPrometheus) {
  ServeMetrics metrics;
  metrics.request_ended(RequestOutcome::kCompleted, 200ms);
  metrics.request_ended(RequestOutcome::kCompleted, 2s);
  metrics.request_ended(RequestOutcome::kCancelled, 1s);
  metrics.first_token(50ms);
  metrics.observe({.queued = 3, .tokens_generated = 17}, {.blocks_total = 10, .blocks_used = 4});
  const std::string text = metrics.text();
  for (const char* line :
       {"# TYPE flotilla_requests_total counter\n", "flotilla_requests_total{outcome=\"completed\"} 2\n",
        "flotilla_requests_total{outcome=\"cancelled\"} 1\n", "flotilla_requests_queued 3\n",
        "flotilla_generated_tokens_total 17\n", "flotilla_kv_blocks_used 4\n",
        "# TYPE flotilla_request_seconds histogram\n", "flotilla_request_seconds_bucket{le=\"0.1\"} 0\n",
        "flotilla_request_seconds_bucket{le=\"0.3\"} 1\n", "flotilla_request_seconds_bucket{le=\"3\"} 2\n",
        "flotilla_request_seconds_bucket{le=\"+Inf\"} 2\n", "flotilla_request_seconds_sum 2.2\n",
        "flotilla_request_seconds_count 2\n", "flotilla_first_token_seconds_bucket{le=\"0.1\"} 1\n"}) {
    EXPECT_THAT(text, HasSubstr(line));
  }
}

}  // namespace
}  // namespace flotilla
