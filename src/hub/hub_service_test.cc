#include "hub/hub_service.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include <fmt/format.h>

#include "base/files.h"
#include "hub/hub_request_for_tests.h"
#include "store/object_store.h"

namespace flotilla {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;
using ::testing::Not;

struct Answer {
  int status = 0;
  std::string body;
  NamedValues headers;
  std::string header(std::string_view name) const {
    for (const auto& [key, value] : headers) {
      if (key == name) return value;
    }
    return {};
  }
};

class HubServiceTest : public ::testing::Test {
 protected:
  HubServiceTest() { clock_.advance(std::chrono::hours(24 * 365 * 50)); }

  AwsCredentials add(const HubGrant& grant, const TokenLimits& limits = {.requests_per_s = 1e6}) {
    const auto issued = tokens_->add(grant, limits).value();
    return {issued.token.id, issued.secret, {}};
  }
  std::chrono::sys_seconds now() const {
    return std::chrono::sys_seconds(std::chrono::floor<std::chrono::seconds>(clock_.wall()));
  }
  SignedForTests sign(const AwsCredentials& who, const std::string& method, const std::string& path,
                      std::string_view body = {}, NamedValues headers = {}, NamedValues query = {}) {
    if (method == "PUT" || method == "POST") headers.emplace_back("content-length", std::to_string(body.size()));
    return signed_for_tests(method, path, std::move(query), std::move(headers), who, now(), sha256(body).to_hex());
  }
  Answer send(const SignedForTests& request, std::string_view body = {}) {
    const auto call = service_.begin(request.request, request.target, "peer");
    for (std::string_view rest = body; call->wants_body() && !rest.empty();) {
      const std::string_view piece = rest.substr(0, 1000);
      if (!call->take(as_bytes(piece))) break;
      rest.remove_prefix(piece.size());
    }
    auto answer = call->answer(true);
    Answer made{answer->status, answer->body, answer->headers};
    if (answer->file) {
      made.body =
          as_text(read_at(answer->file->fd.get(), answer->section.offset, answer->section.count, "an object").value());
    }
    return made;
  }
  Answer ask(const AwsCredentials& who, const std::string& method, const std::string& path, std::string_view body = {},
             NamedValues headers = {}, NamedValues query = {}) {
    return send(sign(who, method, path, body, std::move(headers), std::move(query)), body);
  }
  std::size_t partial_files() const {
    const auto partial = root() / "@store" / "partial";
    if (!std::filesystem::exists(partial)) return 0;
    return static_cast<std::size_t>(std::distance(std::filesystem::directory_iterator(partial), {}));
  }
  std::filesystem::path root() const { return folder_.path() / "hub"; }

  TemporaryFolder folder_;
  const bool made_ = std::filesystem::create_directory(root());
  ManualClock clock_;
  std::unique_ptr<TokenStore> tokens_ = TokenStore::open(folder_.path() / "state").value();
  HubMetrics metrics_;
  HubService service_{root().string(), *tokens_, metrics_, clock_};
  const AwsCredentials learner_ = add({HubRole::kLearner, "ada", {}});
  const AwsCredentials worker_ = add({HubRole::kWorker, "ada/demo", "w1"});
  const AwsCredentials reader_ = add({HubRole::kReader, "ada/demo", {}});
  const std::string group_ = "/ada/demo/rollouts/0000000001/w1/g";
};

TEST_F(HubServiceTest, WhatIsPutIsFoundInTheFolderAndOverHttp) {
  const Answer put = ask(learner_, "PUT", "/ada/demo/head", "12345");
  EXPECT_EQ(put.status, 200) << put.body;
  EXPECT_EQ(put.header("etag"), "\"" + sha256("12345").to_hex() + "\"");
  EXPECT_EQ(open_directory_store(root().string(), false).value()->get("ada/demo/head")->bytes, to_bytes("12345"));
  const Answer got = ask(reader_, "GET", "/ada/demo/head");
  EXPECT_EQ(got.status, 200);
  EXPECT_EQ(got.body, "12345");
  EXPECT_EQ(got.header("etag"), put.header("etag"));
  EXPECT_EQ(ask(reader_, "HEAD", "/ada/demo/head").header("etag"), put.header("etag"));
  EXPECT_EQ(partial_files(), 0u);
}

TEST_F(HubServiceTest, AWriterOfTheFolderIsSeenOverHttp) {
  const auto store = open_directory_store(root().string(), false).value();
  for (const char* text : {"a", "b", "c"}) {  // within one tick of the file system's clock
    ASSERT_TRUE(store->put("ada/demo/head", as_bytes(text)).ok());
    EXPECT_EQ(ask(reader_, "GET", "/ada/demo/head").header("etag"), fmt::format("\"{}\"", sha256(text).to_hex()));
  }
}

TEST_F(HubServiceTest, RangesAreSections) {
  ask(learner_, "PUT", "/ada/demo/x", "0123456789");
  const auto range = [&](const char* text) { return ask(reader_, "GET", "/ada/demo/x", {}, {{"range", text}}); };
  EXPECT_EQ(range("bytes=2-4").status, 206);
  EXPECT_EQ(range("bytes=2-4").body, "234");
  EXPECT_EQ(range("bytes=2-4").header("content-range"), "bytes 2-4/10");
  EXPECT_EQ(range("bytes=-3").body, "789");
  EXPECT_EQ(range("bytes=10-").status, 416);
  EXPECT_EQ(range("nonsense").status, 200);
}

TEST_F(HubServiceTest, ConditionsAreKept) {
  const std::string first = ask(learner_, "PUT", "/ada/demo/head", "1", {{"if-none-match", "*"}}).header("etag");
  EXPECT_EQ(ask(learner_, "PUT", "/ada/demo/head", "2", {{"if-none-match", "*"}}).status, 412);
  EXPECT_EQ(ask(learner_, "PUT", "/ada/demo/head", "2", {{"if-match", "\"other\""}}).status, 412);
  EXPECT_EQ(ask(learner_, "PUT", "/ada/demo/none", "2", {{"if-match", first}}).status, 404);
  const Answer second = ask(learner_, "PUT", "/ada/demo/head", "2", {{"if-match", first}});
  EXPECT_EQ(second.status, 200) << second.body;
  EXPECT_EQ(ask(learner_, "PUT", "/ada/demo/head", "3", {{"if-match", first}}).status, 412);
  EXPECT_EQ(ask(reader_, "GET", "/ada/demo/head", {}, {{"if-none-match", second.header("etag")}}).status, 304);
  EXPECT_EQ(ask(reader_, "GET", "/ada/demo/head", {}, {{"if-none-match", first}}).status, 200);
  EXPECT_EQ(ask(reader_, "GET", "/ada/demo/head", {}, {{"if-match", first}}).status, 412);
}

TEST_F(HubServiceTest, OfTwelveWritersExactlyOneWins) {
  const std::string first = ask(learner_, "PUT", "/ada/demo/head", "0").header("etag");
  for (const NamedValues& condition : {NamedValues{{"if-match", first}}, NamedValues{{"if-none-match", "*"}}}) {
    const std::string path = condition.front().first == "if-match" ? "/ada/demo/head" : "/ada/demo/new";
    std::atomic<int> won = 0, lost = 0;
    {
      std::vector<std::jthread> writers;
      for (int i = 0; i < 12; ++i) {
        writers.emplace_back([&, i] {
          const int status = ask(learner_, "PUT", path, fmt::format("writer {}", i), condition).status;
          ++(status == 200 ? won : lost);
          EXPECT_TRUE(status == 200 || status == 412) << status;
        });
      }
    }
    EXPECT_EQ(won, 1);
    EXPECT_EQ(lost, 11);
  }
}

TEST_F(HubServiceTest, AWaitEndsWithTheNextStateOrItsTime) {
  const std::string tag = ask(learner_, "PUT", "/ada/demo/head", "1").header("etag");
  const SignedForTests request =
      sign(worker_, "GET", "/ada/demo/head", {}, {{"if-none-match", tag}, {"prefer", "wait=20"}});
  const auto changed = service_.begin(request.request, request.target, "peer");
  EXPECT_FALSE(changed->answer().has_value());
  EXPECT_THAT(service_.metrics_text(), HasSubstr("flotilla_hub_waiting 1\n"));
  ask(learner_, "PUT", "/ada/demo/head", "2");
  EXPECT_EQ(changed->answer()->status, 200);
  const std::string second = "\"" + sha256("2").to_hex() + "\"";
  const SignedForTests again =
      sign(worker_, "GET", "/ada/demo/head", {}, {{"if-none-match", second}, {"prefer", "wait=20"}});
  const auto same = service_.begin(again.request, again.target, "peer");
  EXPECT_FALSE(same->answer().has_value());
  clock_.advance(20s);
  EXPECT_EQ(same->answer()->status, 304);
}

TEST_F(HubServiceTest, AWorkerWritesItsOwnAndOnce) {
  EXPECT_EQ(ask(worker_, "PUT", group_, "group").status, 200);
  EXPECT_EQ(ask(worker_, "PUT", group_, "other").status, 412);
  EXPECT_EQ(ask(reader_, "GET", group_).body, "group");
  EXPECT_EQ(ask(worker_, "PUT", "/ada/demo/workers/w1/status", "1").status, 200);
  EXPECT_EQ(ask(worker_, "PUT", "/ada/demo/workers/w1/status", "2").status, 200);
  for (const char* foreign : {"/ada/demo/head", "/ada/demo/rollouts/0000000001/w2/g", "/ada/other/workers/w1/status",
                              "/bob/demo/workers/w1/status"}) {
    EXPECT_EQ(ask(worker_, "PUT", foreign, "x").status, 403) << foreign;
  }
  EXPECT_EQ(ask(worker_, "DELETE", group_).status, 403);
  EXPECT_EQ(ask(worker_, "GET", "/ada/other/head").status, 403);
  EXPECT_EQ(ask(reader_, "PUT", group_ + "2", "x").status, 403);
  EXPECT_EQ(ask(worker_, "GET", "/ada/demo/none").status, 404);
  EXPECT_EQ(ask(worker_, "POST", group_ + "3", {}, {}, {{"uploads", ""}}).status, 200);
  EXPECT_EQ(ask(worker_, "POST", group_, {}, {}, {{"uploads", ""}}).status, 412);
}

TEST_F(HubServiceTest, StrangersAreRefusedWithoutBeingToldAnything) {
  ask(learner_, "PUT", "/ada/demo/head", "1");
  AwsCredentials wrong = worker_;
  wrong.secret_key.back() ^= 1;
  for (const char* path : {"/ada/demo/head", "/ada/demo/none"}) {
    const Answer answer = ask(wrong, "GET", path);
    EXPECT_EQ(answer.status, 403);
    EXPECT_THAT(answer.body, HasSubstr("SignatureDoesNotMatch"));
    EXPECT_THAT(answer.body, Not(HasSubstr(worker_.secret_key)));
    EXPECT_THAT(ask({"FHNOBODY", "x", {}}, "GET", path).body, HasSubstr("InvalidAccessKeyId"));
    SigV4Request bare{"GET", {}, {}, {{"host", "hub"}}};
    EXPECT_THAT(send({bare, path}).body, HasSubstr("AccessDenied"));
  }
  ASSERT_TRUE(tokens_->revoke(worker_.access_key).ok());
  EXPECT_THAT(ask(worker_, "GET", "/ada/demo/head").body, HasSubstr("InvalidAccessKeyId"));
}

TEST_F(HubServiceTest, AClockThatIsOffByTwentyMinutesIsToldSo) {
  for (const auto off : {-20min, 20min}) {
    const auto request = signed_for_tests("GET", "/ada/demo/head", {}, {}, worker_, now() + off, sha256("").to_hex());
    const Answer answer = send(request);
    EXPECT_EQ(answer.status, 403);
    EXPECT_THAT(answer.body, HasSubstr("RequestTimeTooSkewed"));
  }
}

TEST_F(HubServiceTest, AUrlSignedInAdvanceWorksUntilItExpires) {
  ask(learner_, "PUT", "/ada/demo/head", "1");
  SigV4Request request{"GET", "/ada/demo/head", {}, {{"host", "hub"}}};
  presign_request(request, worker_, {now(), "us-east-1"}, 600s);
  const SignedForTests url{{"GET", {}, {}, {{"host", "hub"}}}, request_target(request)};
  EXPECT_EQ(send(url).body, "1");
  clock_.advance(600s);
  EXPECT_EQ(send(url).status, 200);
  clock_.advance(1s);
  const Answer expired = send(url);
  EXPECT_EQ(expired.status, 403);
  EXPECT_THAT(expired.body, Not(HasSubstr("X-Amz-Signature"))) << "the URL is a secret";
}

TEST_F(HubServiceTest, ASignatureChangesSomethingOnce) {
  const SignedForTests put = sign(worker_, "PUT", "/ada/demo/workers/w1/status", "1");
  EXPECT_EQ(send(put, "1").status, 200);
  clock_.advance(2s);
  EXPECT_EQ(send(put, "1").status, 200) << "a client that has lost the answer";
  clock_.advance(10s);
  EXPECT_EQ(ask(worker_, "PUT", "/ada/demo/workers/w1/status", "2").status, 200);
  EXPECT_EQ(send(put, "1").status, 403);
  EXPECT_EQ(ask(reader_, "GET", "/ada/demo/workers/w1/status").body, "2");
  const SignedForTests get = sign(worker_, "GET", "/ada/demo/workers/w1/status");
  EXPECT_EQ(send(get).status, 200);
  clock_.advance(60s);
  EXPECT_EQ(send(get).status, 200) << "a reader changes nothing";
}

TEST_F(HubServiceTest, WrongBytesAreNoObject) {
  const auto refused = [&](NamedValues headers, std::string_view sent = "12345") {
    const Answer answer = send(sign(learner_, "PUT", "/ada/demo/x", "12345", std::move(headers)), sent);
    EXPECT_EQ(ask(reader_, "GET", "/ada/demo/x").status, 404);
    EXPECT_EQ(partial_files(), 0u);
    return answer.body;
  };
  EXPECT_THAT(refused({}, "12346"), HasSubstr("BadDigest"));
  EXPECT_THAT(refused({}, "1234"), HasSubstr("IncompleteBody"));
  EXPECT_THAT(refused({}, "123456"), HasSubstr("IncompleteBody"));
  EXPECT_THAT(refused({{"x-amz-checksum-crc32", "AAAAAA=="}}), HasSubstr("BadDigest"));
  EXPECT_THAT(refused({{"content-md5", "AAAA"}}), HasSubstr("BadDigest"));
  EXPECT_EQ(ask(learner_, "PUT", "/ada/demo/x", "12345", {{"x-amz-checksum-crc32", "y/U6HA=="}}).status, 200);
}

TEST_F(HubServiceTest, ListingsComeInPages) {
  std::filesystem::create_directories(root() / "ada" / "demo");
  for (int i = 0; i < 2500; ++i) std::ofstream(root() / "ada" / "demo" / fmt::format("k{:04}", i)) << "x";
  std::string token;
  int keys = 0, pages = 0;
  do {
    NamedValues query = {{"list-type", "2"}, {"prefix", "demo/"}};
    if (!token.empty()) query.emplace_back("continuation-token", token);
    const std::string body = ask(reader_, "GET", "/ada", {}, {}, query).body;
    for (std::size_t at = 0; (at = body.find("<Key>", at)) != body.npos; ++at) ++keys;
    const std::size_t next = body.find("<NextContinuationToken>");
    token = next == body.npos ? "" : body.substr(next + 23, body.find('<', next + 1) - next - 23);
    ++pages;
  } while (!token.empty());
  EXPECT_EQ(keys, 2500);
  EXPECT_EQ(pages, 3);
  const std::string level = ask(learner_, "GET", "/ada", {}, {}, {{"delimiter", "/"}}).body;
  EXPECT_THAT(level, HasSubstr("<CommonPrefixes><Prefix>demo/</Prefix></CommonPrefixes>"));
  EXPECT_THAT(level, Not(HasSubstr("<Key>")));
  EXPECT_EQ(ask(reader_, "GET", "/ada", {}, {}, {{"delimiter", "/"}}).status, 403) << "would name other runs";
  EXPECT_THAT(ask(reader_, "GET", "/ada", {}, {}, {{"prefix", "demo/\xC3\xA9"}}).body, HasSubstr("<IsTruncated>false"));
}

TEST_F(HubServiceTest, AWorkersTokenIsBoundToTheFirstWorkerItWritesAs) {
  const AwsCredentials fresh = add({HubRole::kWorker, "ada/demo", {}});
  EXPECT_EQ(ask(fresh, "GET", "/ada/demo/none").status, 404) << "a reading binds nothing";
  EXPECT_EQ(ask(fresh, "PUT", "/ada/demo/head", "x").status, 403);
  EXPECT_EQ(ask(fresh, "PUT", "/ada/demo/claims/0000000001/0000000001.0000000000", "x").status, 200);
  EXPECT_THAT(ask(fresh, "PUT", "/ada/demo/workers/w1/status", "x").body, HasSubstr("one token a worker"))
      << "w1 has another";
  EXPECT_EQ(ask(fresh, "PUT", "/ada/demo/workers/w7/status", "x").status, 200);
  EXPECT_EQ(tokens_->find(fresh.access_key)->grant.worker, "w7");
  EXPECT_EQ(ask(fresh, "PUT", "/ada/demo/rollouts/0000000001/w7/g", "x").status, 200);
  EXPECT_EQ(ask(fresh, "PUT", "/ada/demo/rollouts/0000000001/w8/g", "x").status, 403) << "a second worker";
  EXPECT_EQ(ask(add({HubRole::kWorker, "ada/demo", {}}), "POST", "/ada/demo/rollouts/0000000001/w7/h", {}, {},
                {{"uploads", ""}})
                .status,
            403);
}

TEST_F(HubServiceTest, ACopyIsAWriteOfWhatMayBeRead) {
  const std::string tag = ask(learner_, "PUT", "/ada/demo/a", "12345").header("etag");
  ask(learner_, "PUT", "/ada/other/secret", "s");
  const auto copy = [&](const AwsCredentials& who, const std::string& from, const std::string& to,
                        NamedValues headers = {}) {
    headers.emplace_back("x-amz-copy-source", from);
    return ask(who, "PUT", to, {}, std::move(headers));
  };
  EXPECT_THAT(copy(learner_, "/ada/demo/a", "/ada/demo/b").body, HasSubstr("<CopyObjectResult"));
  EXPECT_EQ(ask(reader_, "GET", "/ada/demo/b").body, "12345");
  EXPECT_EQ(ask(reader_, "GET", "/ada/demo/b").header("etag"), tag);
  EXPECT_EQ(copy(learner_, "ada/demo/b", "/ada/demo/b").status, 200) << "of itself, as rclone does it";
  EXPECT_EQ(copy(learner_, "ada/demo/none", "/ada/demo/c").status, 404);
  EXPECT_EQ(copy(learner_, "ada/demo/a", "/ada/demo/b", {{"if-none-match", "*"}}).status, 412);
  EXPECT_THAT(copy(worker_, "ada/demo/a", group_).body, HasSubstr("a worker does not copy"));
  EXPECT_EQ(ask(reader_, "GET", group_).status, 404);
  EXPECT_EQ(copy(reader_, "ada/demo/a", "/ada/demo/c").status, 403);
  const AwsCredentials narrow = add({HubRole::kLearner, "ada/demo", {}});
  EXPECT_EQ(copy(narrow, "ada/other/secret", "/ada/demo/c").status, 403);
  const AwsCredentials small = add({HubRole::kLearner, "ada/demo", {}}, {.object_bytes_max = 4, .requests_per_s = 1e6});
  EXPECT_EQ(copy(small, "ada/demo/a", "/ada/demo/c").status, 413);
  ASSERT_TRUE(service_.maintain(std::time(nullptr)).ok());
  ASSERT_TRUE(tokens_->set_owner("ada", {.bytes_max = 13}).ok());
  EXPECT_EQ(copy(learner_, "ada/demo/a", "/ada/demo/c").status, 507);
  EXPECT_EQ(partial_files(), 0u);
}

TEST_F(HubServiceTest, WhatIsRefusedAmongRemovalsIsCountedAndLogged) {
  ask(worker_, "POST", "/ada", "<Delete><Object><Key>demo/x</Key></Object><Object><Key>demo/y</Key></Object></Delete>",
      {}, {{"delete", ""}});
  EXPECT_THAT(service_.metrics_text(), HasSubstr("flotilla_hub_refused_total{code=\"AccessDenied\"} 1\n"));
}

TEST_F(HubServiceTest, RemovalsAreDecidedKeyByKey) {
  ask(learner_, "PUT", "/ada/demo/a", "1");
  const std::string body = "<Delete><Object><Key>demo/a</Key></Object><Object><Key>demo/../b</Key></Object></Delete>";
  const Answer answer = ask(learner_, "POST", "/ada", body, {}, {{"delete", ""}});
  EXPECT_EQ(answer.status, 200);
  EXPECT_THAT(answer.body, HasSubstr("<Deleted><Key>demo/a</Key></Deleted>"));
  EXPECT_THAT(answer.body, HasSubstr("<Error><Key>demo/../b</Key><Code>InvalidArgument"));
  EXPECT_EQ(ask(reader_, "GET", "/ada/demo/a").status, 404);
  EXPECT_EQ(ask(learner_, "DELETE", "/ada/demo/a").status, 204) << "is not there already";
  EXPECT_THAT(
      ask(reader_, "POST", "/ada", "<Delete><Object><Key>demo/x</Key></Object></Delete>", {}, {{"delete", ""}}).body,
      HasSubstr("AccessDenied"));
  EXPECT_THAT(ask(learner_, "POST", "/ada", "<Delete>", {}, {{"delete", ""}}).body, HasSubstr("MalformedXML"));
}

TEST_F(HubServiceTest, PartsBecomeOneObject) {
  const auto start = ask(learner_, "POST", "/ada/demo/big", {}, {}, {{"uploads", ""}}).body;
  const std::size_t at = start.find("<UploadId>") + 10;
  const std::string id = start.substr(at, 32);
  const auto part = [&](int number, std::string_view bytes, const AwsCredentials& who) {
    return ask(who, "PUT", "/ada/demo/big", bytes, {}, {{"partNumber", std::to_string(number)}, {"uploadId", id}});
  };
  const std::string second = part(2, "world", learner_).header("etag");
  part(1, "wrong ", learner_);
  const std::string first = part(1, "hello ", learner_).header("etag");
  EXPECT_EQ(part(3, "x", add({HubRole::kLearner, "ada", {}})).status, 404) << "another token's upload";
  EXPECT_EQ(ask(learner_, "PUT", "/ada/demo/other", "x", {}, {{"partNumber", "1"}, {"uploadId", id}}).status, 404);
  EXPECT_EQ(ask(learner_, "PUT", "/ada/demo/big", "x", {}, {{"partNumber", "1"}, {"uploadId", "../../.."}}).status,
            404);
  EXPECT_THAT(ask(learner_, "GET", "/ada/demo/big", {}, {}, {{"uploadId", id}}).body, HasSubstr("<PartNumber>2"));
  const auto complete = [&](const std::string& one, const std::string& two) {
    const std::string body = fmt::format(
        "<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>{}</ETag></Part>"
        "<Part><PartNumber>2</PartNumber><ETag>{}</ETag></Part></CompleteMultipartUpload>",
        one, two);
    return ask(learner_, "POST", "/ada/demo/big", body, {}, {{"uploadId", id}});
  };
  EXPECT_THAT(complete(second, first).body, HasSubstr("InvalidPart"));
  EXPECT_EQ(ask(reader_, "GET", "/ada/demo/big").status, 404);
  EXPECT_EQ(complete(first, second).status, 200);
  EXPECT_EQ(ask(reader_, "GET", "/ada/demo/big").body, "hello world");
  EXPECT_EQ(complete(first, second).status, 404) << "it is over";
  EXPECT_TRUE(std::filesystem::is_empty(root() / "@store" / "uploads"));
  EXPECT_EQ(partial_files(), 0u);
}

TEST_F(HubServiceTest, ATokenFindsItsOwnUploads) {
  ask(learner_, "POST", "/ada/demo/big", {}, {}, {{"uploads", ""}});
  ask(worker_, "POST", group_, {}, {}, {{"uploads", ""}});
  const auto listed = [&](const AwsCredentials& who, const std::string& prefix) {
    return ask(who, "GET", "/ada", {}, {}, {{"uploads", ""}, {"prefix", prefix}}).body;
  };
  EXPECT_THAT(listed(learner_, ""), HasSubstr("<Upload><Key>demo/big</Key><UploadId>"));
  EXPECT_THAT(listed(learner_, ""), Not(HasSubstr("rollouts"))) << "another token's";
  EXPECT_THAT(listed(worker_, "demo/rollouts/"), HasSubstr("<Key>demo/rollouts/0000000001/w1/g</Key>"));
  EXPECT_THAT(listed(learner_, "demo/c"), Not(HasSubstr("<Upload>")));
  EXPECT_EQ(ask(worker_, "GET", "/bob", {}, {}, {{"uploads", ""}}).status, 403);
}

TEST_F(HubServiceTest, JoiningAnUploadKeepsToTheQuota) {
  ASSERT_TRUE(service_.maintain(std::time(nullptr)).ok());
  ASSERT_TRUE(tokens_->set_owner("ada", {.bytes_max = 15}).ok());
  const std::string started = ask(learner_, "POST", "/ada/demo/big", {}, {}, {{"uploads", ""}}).body;
  const std::string id = started.substr(started.find("<UploadId>") + 10, 32);
  const auto part =
      ask(learner_, "PUT", "/ada/demo/big", "12345678", {}, {{"partNumber", "1"}, {"uploadId", id}}).header("etag");
  const auto complete = [&] {
    const std::string body = fmt::format(
        "<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>{}</ETag></Part></CompleteMultipartUpload>",
        part);
    return ask(learner_, "POST", "/ada/demo/big", body, {}, {{"uploadId", id}}).status;
  };
  EXPECT_EQ(complete(), 507) << "parts and object are there together for a moment";
  ASSERT_TRUE(tokens_->set_owner("ada", {.bytes_max = 16}).ok());
  EXPECT_EQ(complete(), 200);
  EXPECT_THAT(service_.metrics_text(), HasSubstr("flotilla_hub_owner_bytes{owner=\"ada\"} 8\n"));
}

TEST_F(HubServiceTest, AnUploadThatIsGivenUpOrOldLeavesNothing) {
  const auto start = [&] {
    const std::string body = ask(learner_, "POST", "/ada/demo/big", {}, {}, {{"uploads", ""}}).body;
    return body.substr(body.find("<UploadId>") + 10, 32);
  };
  const std::string given_up = start(), old = start();
  ask(learner_, "PUT", "/ada/demo/big", "x", {}, {{"partNumber", "1"}, {"uploadId", old}});
  EXPECT_EQ(ask(learner_, "DELETE", "/ada/demo/big", {}, {}, {{"uploadId", given_up}}).status, 204);
  EXPECT_TRUE(service_.maintain(std::time(nullptr)).ok());
  EXPECT_TRUE(std::filesystem::exists(root() / "@store" / "uploads" / old));
  EXPECT_TRUE(service_.maintain(std::time(nullptr) + 25 * 3600).ok());
  EXPECT_TRUE(std::filesystem::is_empty(root() / "@store" / "uploads"));
}

TEST_F(HubServiceTest, WhatCannotBeTidiedUpDoesNotEndTheCount) {
  const std::string body = ask(learner_, "POST", "/ada/demo/big", {}, {}, {{"uploads", ""}}).body;
  const std::string id = body.substr(body.find("<UploadId>") + 10, 32);
  ASSERT_TRUE(std::filesystem::create_directory(root() / "@store" / "uploads" / id / "foreign"));
  ASSERT_TRUE(tokens_->set_owner("ada", {.bytes_max = 100}).ok());
  EXPECT_TRUE(service_.maintain(std::time(nullptr) + 25 * 3600).ok());
  EXPECT_EQ(ask(learner_, "PUT", "/ada/demo/x", "12345").status, 200) << "it has been counted";
}

TEST_F(HubServiceTest, SizeRateAndQuotaHold) {
  const AwsCredentials small = add({HubRole::kWorker, "ada/demo", "w1"},
                                   {.object_bytes_max = 10, .requests_per_s = 1e6, .written_bytes_max = 15});
  const auto put = [&](const std::string& name, std::string_view bytes) {
    return ask(small, "PUT", group_ + name, bytes).status;
  };
  EXPECT_EQ(put("1", "12345678901"), 413);
  EXPECT_EQ(put("2", "1234567890"), 200);
  EXPECT_EQ(put("3", "123456"), 507) << "more than the token may write in all";
  EXPECT_EQ(put("4", "12345"), 200);
  EXPECT_EQ(put("5", "1"), 507);

  ASSERT_TRUE(tokens_->set_owner("ada", {.bytes_max = 20}).ok());
  EXPECT_EQ(ask(learner_, "PUT", "/ada/demo/x", "12345").status, 503) << "nobody has counted yet what is there";
  ASSERT_TRUE(service_.maintain(std::time(nullptr)).ok());
  EXPECT_EQ(ask(learner_, "PUT", "/ada/demo/x", "123456").status, 507);
  EXPECT_EQ(ask(learner_, "PUT", "/ada/demo/x", "12345").status, 200);
  EXPECT_EQ(ask(learner_, "DELETE", "/ada/demo/x").status, 204);
  EXPECT_EQ(ask(learner_, "PUT", "/ada/demo/x", "12345").status, 200);

  const AwsCredentials slow = add({HubRole::kReader, "ada/demo", {}}, {.requests_per_s = 2});
  int served = 0;
  for (int i = 0; i < 10; ++i) served += ask(slow, "GET", "/ada/demo/x").status == 200;
  EXPECT_EQ(served, 4);
  const Answer answer = ask(slow, "GET", "/ada/demo/x");
  EXPECT_EQ(answer.status, 503);
  EXPECT_THAT(answer.body, HasSubstr("SlowDown"));
  EXPECT_EQ(answer.header("retry-after"), "1");
  EXPECT_EQ(ask(reader_, "GET", "/ada/demo/x").status, 200) << "no effect on others";
}

TEST_F(HubServiceTest, WhatAnOwnerNoLongerKeepsGoes) {
  for (const char* path : {"/ada/demo/head", "/ada/demo/weights/0000000001/anchor", "/ada/demo/run.json"}) {
    ASSERT_EQ(ask(learner_, "PUT", path, "x").status, 200);
  }
  ASSERT_EQ(ask(worker_, "PUT", group_, "x").status, 200);
  const std::time_t later = std::time(nullptr) + 4 * 24 * 3600;
  EXPECT_TRUE(service_.maintain(later).ok());
  EXPECT_EQ(ask(reader_, "GET", group_).status, 200) << "nobody said that it should go";
  ASSERT_TRUE(tokens_->set_owner("ada", {.keep_days = 3}).ok());
  EXPECT_TRUE(service_.maintain(std::time(nullptr)).ok());
  EXPECT_EQ(ask(reader_, "GET", group_).status, 200);
  EXPECT_TRUE(service_.maintain(later).ok());
  EXPECT_EQ(ask(reader_, "GET", group_).status, 404);
  EXPECT_EQ(ask(reader_, "GET", "/ada/demo/weights/0000000001/anchor").status, 200);
  EXPECT_THAT(service_.metrics_text(), HasSubstr("flotilla_hub_owner_bytes{owner=\"ada\"} 3\n"));
}

TEST_F(HubServiceTest, LinksInTheFolderLeadNowhere) {
  const auto secret = folder_.path() / "secret";
  std::ofstream(secret) << "secret";
  std::filesystem::create_directories(root() / "ada" / "demo");
  std::filesystem::create_symlink(secret, root() / "ada" / "demo" / "link");
  std::filesystem::create_directory_symlink(folder_.path(), root() / "ada" / "demo" / "out");
  for (const char* path : {"/ada/demo/link", "/ada/demo/out/secret"}) {
    const Answer got = ask(learner_, "GET", path);
    EXPECT_EQ(got.status, 403) << path;
    EXPECT_THAT(got.body, Not(HasSubstr("<Message>secret")));
    EXPECT_EQ(ask(learner_, "PUT", path, "x").status, 403) << path;
  }
  EXPECT_THAT(ask(learner_, "GET", "/ada", {}, {}, {{"prefix", "demo/"}}).body, Not(HasSubstr("<Key>")));
  EXPECT_EQ(read_text_file(secret).value(), "secret");
}

TEST_F(HubServiceTest, BucketsAreOwners) {
  EXPECT_THAT(ask(worker_, "GET", "/").body, HasSubstr("<Bucket><Name>ada</Name>"));
  EXPECT_EQ(ask(worker_, "HEAD", "/ada").status, 200);
  EXPECT_EQ(ask(worker_, "HEAD", "/bob").status, 403);
  EXPECT_THAT(ask(worker_, "PUT", "/ada").body, HasSubstr("BucketAlreadyOwnedByYou"));
  EXPECT_EQ(ask(worker_, "PUT", "/bob").status, 403);
  EXPECT_THAT(ask(worker_, "GET", "/ada", {}, {}, {{"location", ""}}).body, HasSubstr("LocationConstraint"));
}

TEST_F(HubServiceTest, WhatHappenedIsCounted) {
  ask(learner_, "PUT", "/ada/demo/x", "12345");
  ask(reader_, "GET", "/ada/demo/none");
  ask(reader_, "PUT", "/ada/demo/x", "1");
  const std::string text = service_.metrics_text();
  for (const char* line :
       {"flotilla_hub_requests_total{operation=\"PutObject\",status=\"200\"} 1\n",
        "flotilla_hub_requests_total{operation=\"GetObject\",status=\"404\"} 1\n",
        "flotilla_hub_refused_total{code=\"AccessDenied\"} 1\n", "flotilla_hub_received_bytes_total 5\n",
        "# TYPE flotilla_hub_request_seconds summary\n", "flotilla_hub_owner_bytes{owner=\"ada\"} 5\n"}) {
    EXPECT_THAT(text, HasSubstr(line));
  }
}

}  // namespace
}  // namespace flotilla
