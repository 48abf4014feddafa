#include "hub/hub_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <list>
#include <thread>

#include <fmt/format.h>

#include "base/files.h"
#include "base/raw_client_for_tests.h"
#include "hub/hub_request_for_tests.h"

namespace flotilla {
namespace {

using namespace std::chrono_literals;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

bool eventually(const std::function<bool()>& holds, std::chrono::seconds patience = 30s) {
  for (const auto deadline = std::chrono::steady_clock::now() + patience; !holds();) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(5ms);
  }
  return true;
}

std::string head_of(const std::string& request) { return request.substr(0, request.find("\r\n\r\n") + 4); }

class HubServerTest : public ::testing::Test {
 protected:
  void start(HubServerOptions options = {}) {
    options.port = options.metrics_port = 0;
    options.threads = 3;
    server_ = HubServer::start(options, service_, metrics_).value();
  }
  std::string request(const std::string& method, const std::string& path, std::string_view body = {},
                      NamedValues headers = {}, std::string_view more = {}) const {
    const auto now = std::chrono::floor<std::chrono::seconds>(std::chrono::system_clock::now());
    const SignedForTests made =
        signed_for_tests(method, path, {}, std::move(headers), who_, now, sha256(body).to_hex());
    std::string text = fmt::format("{} {} HTTP/1.1\r\n", method, made.target);
    for (const auto& [name, value] : made.request.headers) text += fmt::format("{}: {}\r\n", name, value);
    if (method == "PUT") text += fmt::format("Content-Length: {}\r\n", body.size());
    return text + std::string(more) + "\r\n" + std::string(body);
  }
  std::string ask(const std::string& text) const { return RawClient(server_->port()).send(text).read(); }
  std::string last(const std::string& method, const std::string& path, std::string_view body = {}) const {
    return ask(request(method, path, body, {}, "Connection: close\r\n"));
  }

  TemporaryFolder folder_;
  const std::string root_ = (folder_.path() / "hub").string();
  const bool made_ = std::filesystem::create_directory(root_);
  std::unique_ptr<TokenStore> tokens_ = TokenStore::open(folder_.path() / "state").value();
  const TokenStore::Issued issued_ = tokens_->add({HubRole::kLearner, "ada", {}}, {.requests_per_s = 1e6}).value();
  const AwsCredentials who_{issued_.token.id, issued_.secret, {}};
  HubMetrics metrics_;
  HubService service_{root_, *tokens_, metrics_, system_clock()};
  std::unique_ptr<HubServer> server_;
};

TEST_F(HubServerTest, OneConnectionTakesRequestAfterRequest) {
  start();
  RawClient client(server_->port());
  const std::string body(600'000, 'x');  // more than a piece
  client.send(request("PUT", "/ada/demo/x", body));
  EXPECT_THAT(client.read("\r\n\r\n"), StartsWith("HTTP/1.1 200 OK\r\n"));
  client.send(request("HEAD", "/ada/demo/x") + request("GET", "/ada/demo/x", {}, {{"range", "bytes=0-9"}}) +
              request("GET", "/ada/demo/x", {}, {}, "Connection: close\r\n"));
  const std::string head = client.read("\r\n\r\n");
  EXPECT_THAT(head, HasSubstr("content-length: 600000\r\n"));
  EXPECT_THAT(client.read("xxxxxxxxxx"), HasSubstr("HTTP/1.1 206 Partial Content")) << "no body stands between";
  const std::string whole = client.read();
  EXPECT_THAT(whole, StartsWith("HTTP/1.1 200 OK"));
  EXPECT_THAT(whole, EndsWith("\r\n\r\n" + body));
}

TEST_F(HubServerTest, AChunkedBodyIsTakenAsItComes) {
  start();
  const auto now = std::chrono::floor<std::chrono::seconds>(std::chrono::system_clock::now());
  const SignedForTests made = signed_for_tests(
      "PUT", "/ada/demo/x", {}, {{"x-amz-decoded-content-length", "11"}, {"x-amz-trailer", "x-amz-checksum-crc32"}},
      who_, now, kUnsignedChunksWithTrailer);
  std::string head = fmt::format("PUT {} HTTP/1.1\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n", made.target);
  for (const auto& [name, value] : made.request.headers) head += fmt::format("{}: {}\r\n", name, value);
  const std::string wire = "b\r\nhello world\r\n0\r\nx-amz-checksum-crc32:DUoRhQ==\r\n\r\n";
  const std::string sent = fmt::format("{}\r\n{:x}\r\n{}\r\n0\r\n\r\n", head, wire.size(), wire);
  RawClient client(server_->port());
  for (const char byte : sent) client.send({&byte, 1});
  EXPECT_THAT(client.read(), StartsWith("HTTP/1.1 200"));
  EXPECT_THAT(last("GET", "/ada/demo/x"), EndsWith("\r\n\r\nhello world"));
}

TEST_F(HubServerTest, ARefusalComesBeforeTheBody) {
  start();
  RawClient client(server_->port());
  client.send(head_of(request("PUT", "/bob/demo/x", "12345", {}, "Expect: 100-continue\r\n")));
  EXPECT_THAT(client.read("\r\n\r\n"), StartsWith("HTTP/1.1 403"));
  RawClient polite(server_->port());
  const std::string head = head_of(request("PUT", "/ada/demo/x", "12345", {}, "Expect: 100-continue\r\n"));
  polite.send(head);
  EXPECT_THAT(polite.read("\r\n\r\n"), StartsWith("HTTP/1.1 100"));
  polite.send("12345");
  EXPECT_THAT(polite.read("\r\n\r\n"), StartsWith("HTTP/1.1 200"));
}

TEST_F(HubServerTest, AWaitEndsWithTheNextState) {
  start();
  last("PUT", "/ada/demo/head", "1");
  RawClient waiting(server_->port());
  const std::string tag = fmt::format("\"{}\"", sha256("1").to_hex());
  waiting.send(
      request("GET", "/ada/demo/head", {}, {{"if-none-match", tag}, {"prefer", "wait=60"}}, "Connection: close\r\n"));
  ASSERT_TRUE(
      eventually([&] { return service_.metrics_text().find("flotilla_hub_waiting 1\n") != std::string::npos; }));
  last("PUT", "/ada/demo/head", "2");
  EXPECT_THAT(waiting.read(), EndsWith("\r\n\r\n2"));
  {
    RawClient leaving(server_->port());
    const std::string second = fmt::format("\"{}\"", sha256("2").to_hex());
    leaving.send(request("GET", "/ada/demo/head", {}, {{"if-none-match", second}, {"prefer", "wait=60"}}));
    ASSERT_TRUE(
        eventually([&] { return service_.metrics_text().find("flotilla_hub_waiting 1\n") != std::string::npos; }));
  }
  EXPECT_TRUE(eventually([&] { return service_.metrics_text().find("flotilla_hub_waiting 0\n") != std::string::npos; }))
      << "who has left is not waited for";
}

TEST_F(HubServerTest, WhoSendsNothingIsLeftAlone) {
  HubServerOptions options;
  options.idle_timeout = options.head_timeout = options.client_timeout = 100ms;
  start(options);
  EXPECT_EQ(ask(""), "");
  EXPECT_EQ(ask("GET /ada"), "");
  const std::string put = request("PUT", "/ada/demo/x", "12345");
  EXPECT_EQ(ask(put.substr(0, put.size() - 1)), "");
  EXPECT_TRUE(eventually([&] { return std::filesystem::is_empty(root_ + "/@store/partial"); }));
  EXPECT_THAT(service_.metrics_text(), HasSubstr("flotilla_hub_refused_total{code=\"RequestTimeout\"} 2\n"))
      << "a head and a body; a connection that is idle is no request";
}

TEST_F(HubServerTest, WhoDoesNotReadItsAnswerIsLeftAlone) {
  HubServerOptions options;
  options.client_timeout = 200ms;
  start(options);
  // More than the kernel keeps for a client; a slow machine could not upload it in the time.
  std::filesystem::create_directories(root_ + "/ada/demo");
  std::ofstream(root_ + "/ada/demo/large") << std::string(64 << 20, 'x');
  RawClient deaf(server_->port(), true);
  deaf.send(request("GET", "/ada/demo/large"));
  EXPECT_TRUE(
      eventually([&] { return service_.metrics_text().find("flotilla_hub_connections 0\n") != std::string::npos; }));
  EXPECT_THAT(last("GET", "/ada/demo/none"), StartsWith("HTTP/1.1 404"));
}

TEST_F(HubServerTest, WhatIsNoRequestIsRefusedAndCounted) {
  start();
  std::string flood;
  for (int i = 0; i < 200; ++i) flood += fmt::format("X-{}: {}\r\n", i, i);
  EXPECT_THAT(ask("GET /ada HTTP/1.1\r\n" + flood + "\r\n"), StartsWith("HTTP/1.1 431"));
  EXPECT_THAT(ask("GET /ada HTTP/1.1\r\nX: " + std::string(20'000, 'x') + "\r\n\r\n"), StartsWith("HTTP/1.1 431"));
  EXPECT_THAT(ask("nonsense\r\n\r\n"), StartsWith("HTTP/1.1 400"));
  const std::string counted = service_.metrics_text();
  EXPECT_THAT(counted, HasSubstr("flotilla_hub_refused_total{code=\"RequestHeaderSectionTooLarge\"} 2\n"));
  EXPECT_THAT(counted, HasSubstr("flotilla_hub_refused_total{code=\"InvalidRequest\"} 1\n"));
}

TEST_F(HubServerTest, ABodyThatTricklesIsGivenUpInTheEnd) {
  HubServerOptions options;
  options.body_base_time = 100ms;
  options.body_bytes_per_s_min = 1 << 20;
  start(options);
  RawClient client(server_->port());
  client.send(head_of(request("PUT", "/ada/demo/x", std::string(100'000, 'x'))));
  // The pauses are what is tested: each byte is within the limit for a next piece, all together are not.
  std::jthread trickle([&](const std::stop_token& stop) {
    for (; !stop.stop_requested(); std::this_thread::sleep_for(5ms)) client.send("x");
  });
  EXPECT_EQ(client.read(), "");
}

TEST_F(HubServerTest, TooManyConnectionsAreClosedAtOnceAndOthersServed) {
  HubServerOptions options;
  options.connections_max = 3;
  options.connections_per_peer_max = 2;
  start(options);
  std::list<RawClient> held;
  for (int i = 0; i < 2; ++i) {
    held.emplace_back(server_->port()).send(request("HEAD", "/ada"));
    EXPECT_THAT(held.back().read("\r\n\r\n"), StartsWith("HTTP/1.1 200"));
  }
  EXPECT_EQ(ask(request("HEAD", "/ada")), "");
  EXPECT_THAT(service_.metrics_text(), HasSubstr("flotilla_hub_connections_refused_total 1\n"));
  held.pop_front();
  EXPECT_TRUE(eventually([&] { return last("HEAD", "/ada").starts_with("HTTP/1.1 200"); }));
}

TEST_F(HubServerTest, HealthAndMetricsAreOnTheirOwnPort) {
  start();
  const auto ask_metrics = [&](const char* path) {
    return RawClient(server_->metrics_port()).send(fmt::format("GET {} HTTP/1.1\r\n\r\n", path)).read();
  };
  EXPECT_THAT(ask_metrics("/health"), EndsWith("\r\n\r\nok\n"));
  EXPECT_THAT(ask_metrics("/metrics"), HasSubstr("flotilla_hub_connections 0\n"));
  EXPECT_THAT(ask_metrics("/ada/demo/head"), StartsWith("HTTP/1.1 404"));
  EXPECT_THAT(ask("GET /metrics HTTP/1.1\r\nHost: hub\r\nConnection: close\r\n\r\n"), StartsWith("HTTP/1.1 403"));
  std::filesystem::rename(root_, root_ + ".away");
  EXPECT_THAT(ask_metrics("/health"), StartsWith("HTTP/1.1 503"));
  std::filesystem::rename(root_ + ".away", root_);
}

TEST_F(HubServerTest, AStopLetsRequestsEnd) {
  start();
  RawClient idle(server_->port()), busy(server_->port());
  idle.send(request("HEAD", "/ada"));
  idle.read("\r\n\r\n");
  const std::string head = head_of(request("PUT", "/ada/demo/x", "12345", {}, "Expect: 100-continue\r\n"));
  busy.send(head);
  busy.read("\r\n\r\n");
  std::jthread stop([&] { server_->stop(60s); });
  EXPECT_EQ(idle.read(), "") << "a connection without a request is closed";
  busy.send("12345");
  EXPECT_THAT(busy.read(), StartsWith("HTTP/1.1 200"));
  stop.join();
  EXPECT_EQ(read_text_file(root_ + "/ada/demo/x").value(), "12345");
}

TEST_F(HubServerTest, AServerThatGoesAwayLeavesNothingHalf) {
  start();
  RawClient busy(server_->port());
  const std::string head = head_of(request("PUT", "/ada/demo/x", "12345", {}, "Expect: 100-continue\r\n"));
  busy.send(head);
  busy.read("\r\n\r\n");
  server_->stop(0s);
  server_.reset();
  EXPECT_EQ(busy.read(), "");
  EXPECT_TRUE(std::filesystem::is_empty(root_ + "/@store/partial"));
  EXPECT_FALSE(std::filesystem::exists(root_ + "/ada"));
}

TEST_F(HubServerTest, OtherMachinesAreServedWithACertificateOnly) {
  const auto code = [&](HubServerOptions options) {
    options.metrics_port = 0;
    const auto started = HubServer::start(options, service_, metrics_);
    return started.ok() ? StatusCode::kOk : started.status().code();
  };
  HubServerOptions options{.address = "0.0.0.0", .port = 0};
  EXPECT_EQ(code(options), StatusCode::kInvalidArgument);
  options.plain_text = true;
  EXPECT_EQ(code(options), StatusCode::kOk);
  options = {.address = "0.0.0.0", .port = 0, .tls = self_signed_certificate(folder_.path()).value()};
  EXPECT_EQ(code(options), StatusCode::kOk);
  options.tls->key = options.tls->certificate;
  EXPECT_EQ(code(options), StatusCode::kInvalidArgument);
  options = {.address = "localhost", .port = 0};
  EXPECT_EQ(code(options), StatusCode::kInvalidArgument);
  start();
  options = {.address = "127.0.0.1", .port = server_->port()};
  EXPECT_EQ(code(options), StatusCode::kUnavailable);
}

TEST_F(HubServerTest, ASelfSignedCertificateIsMadeOnceAndItsPinStays) {
  const TlsFiles files = self_signed_certificate(folder_.path()).value();
  const std::string pin = public_key_pin(files.certificate).value();
  EXPECT_THAT(pin, StartsWith("sha256//"));
  EXPECT_EQ(self_signed_certificate(folder_.path())->certificate, files.certificate);
  EXPECT_EQ(public_key_pin(files.certificate).value(), pin);
  EXPECT_EQ(std::filesystem::status(files.key).permissions(), std::filesystem::perms(0600));
  EXPECT_EQ(public_key_pin(files.key).status().code(), StatusCode::kInvalidArgument);
  std::filesystem::remove(files.key);
  EXPECT_EQ(self_signed_certificate(folder_.path()).status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace flotilla
