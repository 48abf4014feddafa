#include "serve/http_server.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "rollout/toy_for_tests.h"
#include "serve/http_reply.h"

namespace flotilla {
namespace {

using namespace std::chrono_literals;
using nlohmann::json;
using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

// A client that sends bytes as they are.
class RawClient {
 public:
  explicit RawClient(std::uint16_t port) : fd_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(::connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  }
  ~RawClient() { ::close(fd_); }
  RawClient(const RawClient&) = delete;
  RawClient& operator=(const RawClient&) = delete;

  RawClient& send(std::string_view text) {
    while (!text.empty()) {
      const auto sent = ::send(fd_, text.data(), text.size(), MSG_NOSIGNAL);
      if (sent <= 0) break;
      text.remove_prefix(static_cast<std::size_t>(sent));
    }
    return *this;
  }
  // What came, up to and with `end`, or all until the server closes.
  std::string read(std::string_view end = {}) {
    for (;;) {
      if (const auto at = end.empty() ? std::string::npos : read_.find(end); at != std::string::npos) {
        const std::string text = read_.substr(0, at + end.size());
        read_.erase(0, at + end.size());
        return text;
      }
      char buffer[4096];
      const auto count = ::recv(fd_, buffer, sizeof(buffer), 0);
      if (count <= 0) return std::exchange(read_, {});
      read_.append(buffer, static_cast<std::size_t>(count));
    }
  }

 private:
  const int fd_;
  std::string read_;
};

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

  explicit TestServer(HttpOptions options = {}) : service(*engine, *tokenizer, {}, metrics) {
    options.port = 0;
    server = HttpServer::start(options, model, service, metrics).value();
  }
  std::string ask(std::string_view request) { return RawClient(server->port()).send(request).read(); }
};

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
  EXPECT_THAT(test.ask(get("/v1/models/toy")), HasSubstr("\"id\":\"toy\""));
  EXPECT_THAT(test.ask(get("/v1/models/no")), StartsWith("HTTP/1.1 404"));
  EXPECT_THAT(test.ask(get("/metrics")), HasSubstr("flotilla_kv_blocks 1000\n"));
  EXPECT_THAT(test.ask("GET /health HTTP/1.1\r\nHost: example.org\r\nConnection: close\r\n\r\n"),
              StartsWith("HTTP/1.1 403"));
  EXPECT_THAT(test.ask("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{}"),
              StartsWith("HTTP/1.1 415"));
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

TEST(HttpServer, AnswersEndAfterAStopAndNewRequestsAreRefused) {
  TestServer test;
  RawClient idle(test.server->port());
  idle.send(get("/health", ""));
  idle.read("}");
  json body = completion(100);
  body["stream"] = true;
  body["n"] = 8;
  RawClient streaming(test.server->port());
  streaming.send(post("/v1/completions", body, ""));
  std::string text = streaming.read("data: ");
  test.server->stop(60s);
  text = streaming.read();
  EXPECT_THAT(text, HasSubstr("data: [DONE]\n\n"));
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
