// The S3 client when connections break, answers get lost, and servers want something else.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include <fmt/format.h>

#include "net/fault_proxy.h"
#include "s3_server.h"
#include "sync/publisher.h"
#include "sync/state_holder_for_tests.h"
#include "sync/store_access.h"
#include "sync/test_model.h"

namespace flotilla {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;
using ::testing::Not;

class S3FaultsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    FLOTILLA_NEED_S3_SERVER();
    server_ = S3Server::shared();
    prefix_ = server_->fresh_prefix();
    proxy_ = std::make_unique<FaultProxy>(server_->port);
    direct_ = open_s3_store(server_->address(prefix_), false, {}, server_->options()).value();
  }

  S3Options options() const {
    S3Options options = server_->options();
    options.times.idle = 0ms;  // a connection a request
    return options;
  }
  // A store behind the proxy. The look at the bucket, which comes first, is not disturbed.
  std::unique_ptr<ObjectStore> store(S3Options options, std::stop_token calm = {}) {
    return open_s3_store(server_->address(prefix_, proxy_->port()), false, std::move(calm), std::move(options)).value();
  }
  std::unique_ptr<ObjectStore> store() { return store(options()); }
  void answer(std::string_view status, std::string_view headers, std::string_view code) {
    const std::string body = fmt::format("<Error><Code>{}</Code><Message>no</Message></Error>", code);
    proxy_->then({Fault::kAnswer, 0,
                  fmt::format("HTTP/1.1 {}\r\nContent-Length: {}\r\n{}\r\n{}", status, body.size(), headers, body)});
  }
  std::string last_head() const { return proxy_->heads().back(); }
  static Bytes pattern(std::size_t size) {
    Bytes bytes(size);
    for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::uint8_t>(i * 2654435761u >> 13);
    return bytes;
  }

  const S3Server* server_ = nullptr;
  std::string prefix_;
  std::unique_ptr<FaultProxy> proxy_;
  std::unique_ptr<ObjectStore> direct_;
};

TEST_F(S3FaultsTest, AServerThatIsAwayIsAskedAgain) {
  const auto hub = store();
  proxy_->then({Fault::kRefuse});
  proxy_->then({Fault::kRefuse});
  EXPECT_TRUE(hub->put("k", as_bytes("1")).ok());
  EXPECT_EQ(proxy_->heads().size(), 4u);
}

TEST_F(S3FaultsTest, AServerThatStaysAwayIsUnavailable) {
  const auto hub = store();
  for (int i = 0; i < 10; ++i) proxy_->then({Fault::kRefuse});
  EXPECT_EQ(hub->put("k", as_bytes("1")).status().code(), StatusCode::kUnavailable);
  EXPECT_EQ(proxy_->heads().size(), 5u);
  S3Options closed = options();
  const auto away = S3Client::open("s3://bucket?endpoint=http://127.0.0.1:1", closed, {}).value();
  EXPECT_EQ(away->call({.method = "GET"}).status().code(), StatusCode::kUnavailable);
  const auto nowhere = S3Client::open("s3://bucket?endpoint=http://no-such-host.invalid", closed, {}).value();
  EXPECT_EQ(nowhere->call({.method = "GET"}).status().code(), StatusCode::kUnavailable);
}

TEST_F(S3FaultsTest, ADownloadGoesOnWhereItWasCut) {
  const Bytes bytes = pattern(3'000'000);
  const auto etag = direct_->put("k", bytes);
  ASSERT_TRUE(etag.ok());
  const auto hub = store();
  for (int i = 0; i < 8; ++i) proxy_->then({Fault::kCutAnswer, 300'000});
  const auto object = hub->get("k");
  ASSERT_TRUE(object.ok()) << object.status().to_string();
  EXPECT_EQ(object->bytes, bytes);
  EXPECT_EQ(object->etag, *etag);
  EXPECT_EQ(proxy_->heads().size(), 10u);
  EXPECT_THAT(proxy_->heads()[2], HasSubstr("range: bytes=29"));
  EXPECT_THAT(proxy_->heads()[2], HasSubstr("if-match: " + *etag));
  proxy_->then({Fault::kCutAnswer, 200'000});
  const auto range = hub->get_range("k", 1'000'000, 500'000);
  ASSERT_TRUE(range.ok()) << range.status().to_string();
  EXPECT_EQ(*range, Bytes(bytes.begin() + 1'000'000, bytes.begin() + 1'500'000));
  EXPECT_THAT(last_head(), HasSubstr("-1499999\r\n"));
}

TEST_F(S3FaultsTest, ADownloadNeverJoinsTwoStates) {
  ASSERT_TRUE(direct_->put("k", pattern(400'000)).ok());
  const Bytes other(400'000, 7);
  const auto hub = store();
  proxy_->then({Fault::kCutAnswer, 200'000});
  proxy_->then({.before = [&] { ASSERT_TRUE(direct_->put("k", other).ok()); }});
  const auto object = hub->get("k");
  ASSERT_TRUE(object.ok()) << object.status().to_string();
  EXPECT_EQ(object->bytes, other);
}

TEST_F(S3FaultsTest, AWriteWhoseAnswerIsLostIsReadBack) {
  const auto hub = store();
  proxy_->then({Fault::kLoseAnswer});
  EXPECT_EQ(hub->put_if_absent("k", as_bytes("1")).status().code(), StatusCode::kUnavailable);
  EXPECT_EQ(as_text(direct_->get("k")->bytes), "1");
  EXPECT_EQ(hub->put_if_absent("k", as_bytes("1")).status().code(), StatusCode::kAlreadyExists);
  proxy_->then({Fault::kLoseAnswer});
  EXPECT_TRUE(create_verified(*hub, "other", as_bytes("2")).ok());

  const auto object = hub->get("k");
  proxy_->then({Fault::kLoseAnswer});
  EXPECT_EQ(hub->put_if_match("k", as_bytes("3"), object->etag).status().code(), StatusCode::kUnavailable);
  EXPECT_EQ(as_text(direct_->get("k")->bytes), "3");
  EXPECT_EQ(hub->put_if_match("k", as_bytes("4"), object->etag).status().code(), StatusCode::kFailedPrecondition);
  proxy_->then({Fault::kLoseAnswer});
  EXPECT_TRUE(hub->put("k", as_bytes("5")).ok());
  proxy_->then({Fault::kLoseAnswer});
  EXPECT_TRUE(hub->remove("k").ok());
}

TEST_F(S3FaultsTest, ALearnerPublishesThroughLostAnswers) {
  const auto hub = store();
  const HubLayout layout{"owner/run"};
  const ModelDescription description = test_description();
  PhiloxStream random{11, 0};
  for (int i = 0; i < 200; ++i) proxy_->then({i % 3 == 1 ? Fault::kLoseAnswer : Fault::kNone});
  auto publisher = Publisher::open(*hub, layout, description, test_key(), {3}, null_event_sink());
  ASSERT_TRUE(publisher.ok()) << publisher.status().to_string();
  StateHolder worker(*direct_, layout, description);
  GridState state = random_state(description, random);
  for (std::uint64_t step = 0; step < 4; ++step) {
    auto report = (*publisher)->publish(state, step);
    for (int attempt = 0; attempt < 10 && !report.ok() && may_pass(report.status()); ++attempt) {
      report = (*publisher)->publish(state, step);
    }
    ASSERT_TRUE(report.ok()) << report.status().to_string();
    ASSERT_TRUE(worker.poll().ok());
    const auto pulled = worker.pull();
    ASSERT_TRUE(pulled.ok()) << pulled.status().to_string();
    EXPECT_EQ(*pulled->state, state);
    state = changed_state(description, state, {.integers = 0.01, .vectors = 0.05, .scales = 0.002}, random);
  }
}

TEST_F(S3FaultsTest, AServerThatSaysNothingOrTricklesIsLeft) {
  ASSERT_TRUE(direct_->put("k", pattern(100'000)).ok());
  S3Options hasty = options();
  hasty.times.window = 300ms;
  hasty.retry.attempts = 2;
  const auto hub = store(hasty);
  for (const Fault::Kind kind : {Fault::kHang, Fault::kTrickle}) {
    proxy_->then({kind});
    proxy_->then({kind});
    const auto object = hub->get("k");
    EXPECT_EQ(object.status().code(), StatusCode::kDeadlineExceeded) << object.status().to_string();
  }
}

TEST_F(S3FaultsTest, AStopEndsATransfer) {
  ASSERT_TRUE(direct_->put("k", pattern(4'000'000)).ok());
  const auto hub = store();
  std::stop_source stop;
  proxy_->then({Fault::kHang});
  std::jthread stopper([&] {
    while (proxy_->heads().size() < 2) std::this_thread::yield();
    stop.request_stop();
  });
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(hub->get_range_unless_stopped("k", 0, 4'000'000, stop.get_token()).status().code(), StatusCode::kCancelled);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 10s);  // not the 30 s of a silent peer
}

TEST_F(S3FaultsTest, OnceCalmNothingIsTriedTwice) {
  std::stop_source calm;
  const auto hub = store(options(), calm.get_token());
  calm.request_stop();
  proxy_->then({Fault::kRefuse});
  EXPECT_EQ(hub->put("k", as_bytes("1")).status().code(), StatusCode::kUnavailable);
  EXPECT_EQ(proxy_->heads().size(), 2u);
  EXPECT_TRUE(hub->put("k", as_bytes("1")).ok());
}

TEST_F(S3FaultsTest, ABusyServerIsGivenTheTimeThatItAsksFor) {
  const auto hub = store();
  answer("503 Slow Down", "Retry-After: 1\r\n", "SlowDown");
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_TRUE(hub->put_if_absent("k", as_bytes("1")).ok());
  EXPECT_GE(std::chrono::steady_clock::now() - begin, 1s);
  answer("429 Too Many Requests", "", "TooManyRequests");
  answer("409 Conflict", "", "ConditionalRequestConflict");
  answer("500 Internal Server Error", "", "InternalError");
  EXPECT_TRUE(hub->put_if_absent("l", as_bytes("1")).ok());
}

TEST_F(S3FaultsTest, AClockThatIsWrongIsCorrected) {
  const auto hub = store();
  answer("403 Forbidden", "Date: Fri, 24 May 2013 10:00:00 GMT\r\n", "RequestTimeTooSkewed");
  EXPECT_TRUE(hub->put("k", as_bytes("1")).ok());
  EXPECT_THAT(last_head(), HasSubstr("x-amz-date: 20130524T10000"));
  // HEAD has no body to say why; only once.
  proxy_->then({Fault::kAnswer, 0, "HTTP/1.1 403 Forbidden\r\nDate: Sat, 25 May 2013 10:00:00 GMT\r\n\r\n"});
  EXPECT_TRUE(hub->head("k").ok());
  EXPECT_THAT(last_head(), HasSubstr("x-amz-date: 20130525T10000"));
  answer("403 Forbidden", "Date: Fri, 24 May 2013 10:00:00 GMT\r\n", "RequestTimeTooSkewed");
  answer("403 Forbidden", "Date: Fri, 24 May 2013 10:00:00 GMT\r\n", "RequestTimeTooSkewed");
  EXPECT_EQ(hub->put("k", as_bytes("1")).status().code(), StatusCode::kFailedPrecondition);
}

TEST_F(S3FaultsTest, ABucketIsFollowedIntoItsRegion) {
  const auto hub = store();
  answer("301 Moved Permanently", "x-amz-bucket-region: eu-west-1\r\n", "PermanentRedirect");
  EXPECT_TRUE(hub->put("k", as_bytes("1")).ok());
  EXPECT_THAT(last_head(), HasSubstr("/eu-west-1/s3/aws4_request"));
  answer("301 Moved Permanently", "", "PermanentRedirect");
  EXPECT_EQ(hub->put("k", as_bytes("1")).status().code(), StatusCode::kFailedPrecondition);
}

TEST_F(S3FaultsTest, KeysThatHaveExpiredAreReadAgain) {
  bool renewed = false;
  S3Options expiring = options();
  expiring.environment = [&, inner = expiring.environment](const char* name) {
    return !renewed && std::string_view(name) == "AWS_ACCESS_KEY_ID" ? std::optional<std::string>("EXPIRED")
                                                                     : inner(name);
  };
  const auto hub = store(expiring);
  answer("400 Bad Request", "", "ExpiredToken");
  EXPECT_EQ(hub->put("k", as_bytes("1")).status().code(), StatusCode::kPermissionDenied);
  answer("400 Bad Request", "", "ExpiredToken");
  renewed = true;
  EXPECT_TRUE(hub->put("k", as_bytes("1")).ok());
  EXPECT_THAT(last_head(), HasSubstr("Credential=" + server_->access_key));
}

TEST_F(S3FaultsTest, APartOfALargeObjectIsSentAgainByItself) {
  S3Options parts = options();
  parts.multipart_bytes = 6 << 20;
  parts.part_bytes = 5 << 20;
  const auto hub = store(parts);
  const Bytes bytes = pattern(11 << 20);
  // HEAD, begin, three parts, end.
  proxy_->then({});
  proxy_->then({});
  proxy_->then({});
  proxy_->then({Fault::kLoseAnswer});
  proxy_->then({});
  proxy_->then({});
  answer("200 OK", "", "InternalError");
  const auto etag = hub->put_if_absent("k", bytes);
  ASSERT_TRUE(etag.ok()) << etag.status().to_string();
  EXPECT_EQ(proxy_->heads().size(), 9u);
  EXPECT_EQ(direct_->get("k")->bytes, bytes);
  // The end's answer is lost: a server may end an upload twice, or say that it is gone.
  for (int i = 0; i < 5; ++i) proxy_->then({});
  proxy_->then({Fault::kLoseAnswer});
  const auto repeated = hub->put_if_absent("l", bytes);
  EXPECT_TRUE(repeated.ok() || repeated.status().code() == StatusCode::kUnavailable) << repeated.status().to_string();
  EXPECT_EQ(direct_->get("l")->bytes, bytes);
}

TEST_F(S3FaultsTest, ARefusalBeforeTheEndOfTheRequestIsHeard) {
  const auto hub = store();
  answer("403 Forbidden", "", "AccessDenied");
  const auto put = hub->put("k", Bytes(20'000'000, 1));
  EXPECT_EQ(put.status().code(), StatusCode::kPermissionDenied) << put.status().to_string();
  EXPECT_THAT(put.status().message(), HasSubstr("AccessDenied"));
}

TEST_F(S3FaultsTest, WhatIsNotHttpIsAnError) {
  const auto hub = store();
  proxy_->then({Fault::kAnswer, 0, "SSH-2.0-OpenSSH_9.2\r\n\r\n"});
  EXPECT_EQ(hub->get("k").status().code(), StatusCode::kInternal);
  proxy_->then({Fault::kAnswer, 0, "HTTP/1.1 200 OK\r\nX: " + std::string(100'000, 'x') + "\r\n\r\n"});
  EXPECT_EQ(hub->get("k").status().code(), StatusCode::kInternal);
  proxy_->then({Fault::kAnswer, 0, "HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999\r\n\r\n"});
  EXPECT_EQ(hub->get("k").status().code(), StatusCode::kInternal);
  // A length that is a lie takes no memory, and interim answers are passed over.
  proxy_->then(
      {Fault::kAnswer, 0, "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 9999999999999\r\n\r\nx"});
  EXPECT_EQ(hub->get("k").status().code(), StatusCode::kNotFound);
}

TEST_F(S3FaultsTest, AServerThatIgnoresConditionsIsNoHub) {
  for (int i = 0; i < 3; ++i)
    proxy_->then({.kind = i == 0 ? Fault::kNone : Fault::kAnswer,
                  .text = "HTTP/1.1 200 OK\r\nETag: \"x\"\r\nContent-Length: 0\r\n\r\n"});
  const auto hub = open_s3_store(server_->address(prefix_, proxy_->port()), true, {}, options());
  EXPECT_EQ(hub.status().code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(hub.status().message(), HasSubstr("If-None-Match"));
}

TEST_F(S3FaultsTest, AServerThatRefusesIfMatchIsNoHub) {
  for (int i = 0; i < 3; ++i) proxy_->then({});
  answer("501 Not Implemented", "", "NotImplemented");  // as Swift says it, which keeps If-None-Match
  const auto hub = open_s3_store(server_->address(prefix_, proxy_->port()), true, {}, options());
  EXPECT_EQ(hub.status().code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(hub.status().message(), HasSubstr("--single-writer"));
}

TEST_F(S3FaultsTest, GoesThroughAProxy) {
  FaultProxy proxy(server_->port);
  S3Options proxied = server_->options({{"http_proxy", fmt::format("http://ada:secret@127.0.0.1:{}", proxy.port())}});
  const auto hub = open_s3_store(server_->address(prefix_), false, {}, proxied).value();
  EXPECT_TRUE(hub->put("k", as_bytes("1")).ok());
  EXPECT_THAT(proxy.heads().front(),
              HasSubstr(fmt::format("HEAD http://127.0.0.1:{}/{} ", server_->port, server_->bucket)));
  EXPECT_THAT(proxy.heads().front(), HasSubstr("proxy-authorization: Basic YWRhOnNlY3JldA=="));
}

TEST_F(S3FaultsTest, TrustsACertificateOfItsBundleOnly) {
  const S3Options trusting = server_->options({{"AWS_CA_BUNDLE", server_->ca_bundle}});
  const auto address = [&](std::string_view host) {
    return fmt::format("s3://{}/{}?endpoint=https://{}:{}", server_->bucket, prefix_, host, server_->tls_port);
  };
  for (const char* host : {"127.0.0.1", "[::1]"}) {
    const auto hub = open_s3_store(address(host), true, {}, trusting);
    ASSERT_TRUE(hub.ok()) << hub.status().to_string();
    const Bytes bytes = pattern(2'000'000);
    ASSERT_TRUE((*hub)->put("k", bytes).ok());
    EXPECT_EQ((*hub)->get("k")->bytes, bytes);
  }
  const auto code = [&](std::string_view host, const S3Options& options) {
    return open_s3_store(address(host), false, {}, options).value()->get("k").status();
  };
  // The certificate names addresses only.
  EXPECT_EQ(code("localhost", trusting).code(), StatusCode::kPermissionDenied);
  const Status stranger = code("127.0.0.1", server_->options());
  EXPECT_EQ(stranger.code(), StatusCode::kPermissionDenied);
  EXPECT_THAT(stranger.message(), HasSubstr("not trusted"));
  // A pin stands in for both.
  const auto pinned = [&](const std::string& pin) {
    return open_s3_store(address("localhost") + "&pin=" + pin, false, {}, server_->options())
        .value()
        ->get("k")
        .status();
  };
  EXPECT_TRUE(pinned(server_->pin).ok()) << pinned(server_->pin).to_string();
  EXPECT_EQ(pinned("sha256//" + base64(Bytes(32, 1))).code(), StatusCode::kPermissionDenied);
  EXPECT_EQ(code("127.0.0.1", server_->options({{"AWS_CA_BUNDLE", "/nonexistent.pem"}})).code(),
            StatusCode::kInvalidArgument);
}

TEST_F(S3FaultsTest, GoesThroughATunnelToATlsServer) {
  FaultProxy proxy(server_->tls_port);
  S3Options tunnelled = server_->options(
      {{"AWS_CA_BUNDLE", server_->ca_bundle}, {"https_proxy", fmt::format("http://127.0.0.1:{}", proxy.port())}});
  const auto address =
      fmt::format("s3://{}/{}?endpoint=https://127.0.0.1:{}", server_->bucket, prefix_, server_->tls_port);
  for (int i = 0; i < 2; ++i) proxy.then({Fault::kTunnel, 0, "HTTP/1.1 200 Connection established\r\n\r\n"});
  const auto hub = open_s3_store(address, false, {}, tunnelled).value();
  EXPECT_TRUE(hub->put("k", as_bytes("1")).ok());
  EXPECT_THAT(proxy.heads().front(), HasSubstr(fmt::format("CONNECT 127.0.0.1:{} ", server_->tls_port)));
  EXPECT_THAT(proxy.heads().front(), Not(HasSubstr("authorization")));
  proxy.then({Fault::kAnswer, 0, "HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n"});
  proxy.then({Fault::kAnswer, 0, "HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n"});
  EXPECT_EQ(open_s3_store(address, false, {}, tunnelled).value()->get("k").status().code(),
            StatusCode::kPermissionDenied);
}

}  // namespace
}  // namespace flotilla
