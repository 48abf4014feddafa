#include "store/object_store_suite_for_tests.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>

#include "hub/hub_server.h"
#include "hub/token_store.h"
#include "s3_server.h"
#include "versions_for_tests.h"

namespace flotilla {
namespace {

class S3StoreTest : public ::testing::Test {
 protected:
  void SetUp() override { FLOTILLA_NEED_S3_SERVER(); }
  const S3Server& server() { return *S3Server::shared(); }
  Result<std::unique_ptr<ObjectStore>> open(S3Options options) {
    return open_s3_store(server().address(prefix_), false, {}, std::move(options));
  }
  std::unique_ptr<ObjectStore> store() { return open(server().options()).value(); }

  const std::string prefix_ = S3Server::shared() == nullptr ? "" : S3Server::shared()->fresh_prefix();
};

Hub s3_hub() {
  const S3Server* server = S3Server::shared();
  if (server == nullptr) return {};
  return {nullptr, nullptr,
          open_s3_store(server->address(server->fresh_prefix()), true, {}, server->options()).value()};
}

// A hub server of our own, in this process.
class OwnServer {
 public:
  OwnServer() {
    std::filesystem::create_directory(root_);
    server_ = HubServer::start({.port = 0, .metrics_port = 0, .threads = 4}, service_, metrics_).value();
  }
  S3Options options() const {
    S3Options options;
    options.environment = [this](const char* name) -> std::optional<std::string> {
      if (std::string_view(name) == "AWS_ACCESS_KEY_ID") return issued_.token.id;
      if (std::string_view(name) == "AWS_SECRET_ACCESS_KEY") return issued_.secret;
      return std::nullopt;
    };
    return options;
  }
  std::unique_ptr<ObjectStore> store(S3Options options) const {
    static std::atomic<int> count{0};
    const auto address = fmt::format("s3://ada/run{}?endpoint=http://127.0.0.1:{}", ++count, server_->port());
    return open_s3_store(address, false, {}, std::move(options)).value();
  }
  static const OwnServer& shared() {
    static const OwnServer server;
    return server;
  }

 private:
  TemporaryFolder folder_;
  const std::string root_ = (folder_.path() / "hub").string();
  std::unique_ptr<TokenStore> tokens_ = TokenStore::open(folder_.path() / "state").value();
  TokenStore::Issued issued_ = tokens_->add({HubRole::kLearner, "ada", {}}, {.requests_per_s = 1e6}).value();
  HubMetrics metrics_;
  HubService service_{root_, *tokens_, metrics_, system_clock()};
  std::unique_ptr<HubServer> server_;
};

Hub own_hub() { return {nullptr, nullptr, OwnServer::shared().store(OwnServer::shared().options())}; }

TEST(OwnServer, AClockThatIsTwentyMinutesOffIsCorrected) {
  for (const int minutes : {-20, 20}) {
    S3Options options = OwnServer::shared().options();
    options.now = [minutes] {
      return std::chrono::floor<std::chrono::seconds>(std::chrono::system_clock::now()) + std::chrono::minutes(minutes);
    };
    const auto hub = OwnServer::shared().store(options);
    const auto put = hub->put_if_absent("k", as_bytes("1"));
    EXPECT_TRUE(put.ok()) << put.status().to_string();
    EXPECT_EQ(as_text(hub->get("k")->bytes), "1");
  }
}

TEST(OwnServer, RefusesAWrongSecret) {
  S3Options options = OwnServer::shared().options();
  options.environment = [inner = options.environment](const char* name) {
    return std::string_view(name) == "AWS_SECRET_ACCESS_KEY" ? std::optional<std::string>("wrong") : inner(name);
  };
  const auto put = OwnServer::shared().store(options)->put("k", as_bytes("1"));
  EXPECT_EQ(put.status().code(), StatusCode::kPermissionDenied) << put.status().to_string();
}

INSTANTIATE_TEST_SUITE_P(S3, ObjectStoreTest,
                         ::testing::Values(Implementation{"s3", s3_hub, false},
                                           Implementation{"hub", own_hub, false, 16}),
                         [](const auto& info) { return info.param.name; });

// As flotilla hub serve has it: owners are buckets.
TEST_F(S3StoreTest, OfAServerHasTheBucketInTheKeys) {
  const auto hub =
      open_s3_store(fmt::format("http://127.0.0.1:{}", server().port), true, {}, server().options()).value();
  const std::string run = server().bucket + "/" + prefix_ + "/";
  for (const char* name : {"a", "b/c", "d"}) ASSERT_TRUE(hub->put_if_absent(run + name, as_bytes(name)).ok());
  EXPECT_EQ(hub->put_if_absent(run + "a", as_bytes("x")).status().code(), StatusCode::kAlreadyExists);
  EXPECT_EQ(as_text(hub->get(run + "b/c")->bytes), "b/c");
  EXPECT_EQ(as_text(store()->get("b/c")->bytes), "b/c");
  const auto keys = [&](const std::string& prefix, const std::string& after, std::size_t limit) {
    std::vector<std::string> found;
    const auto page = hub->list(prefix, after, limit);
    EXPECT_TRUE(page.ok()) << page.status().to_string();
    for (const ObjectInfo& info : page->objects) found.push_back(info.key);
    return found;
  };
  using Keys = std::vector<std::string>;
  EXPECT_EQ(keys(run, "", 1000), (Keys{run + "a", run + "b/c", run + "d"}));
  EXPECT_EQ(keys(run, run + "a", 1), (Keys{run + "b/c"}));
  EXPECT_EQ(keys(run, "a", 1), (Keys{run + "a"}));
  EXPECT_EQ(keys(run, "z", 1), Keys{});
  EXPECT_EQ(list_all(*hub, run)->size(), 3u);
  EXPECT_EQ(hub->list("fl", "", 1).status().code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(hub->remove(run + "a").ok());
  EXPECT_EQ(hub->get(run + "a").status().code(), StatusCode::kNotFound);
}

class UnconditionalStoreTest : public S3StoreTest {
 protected:
  Result<std::unique_ptr<ObjectStore>> open(const std::string& setting) {
    S3Server unconditional = server();
    unconditional.bucket = server().unconditional_bucket;
    return open_s3_store(unconditional.address(prefix_) + setting, true, {}, server().options());
  }
};

TEST_F(UnconditionalStoreTest, IsRefusedUnlessThereIsASingleWriter) {
  const auto refused = open("");
  EXPECT_EQ(refused.status().code(), StatusCode::kFailedPrecondition) << refused.status().to_string();
  EXPECT_THAT(refused.status().message(), ::testing::HasSubstr("--single-writer"));
  const auto hub = open("&single-writer=yes");
  ASSERT_TRUE(hub.ok()) << hub.status().to_string();
  const auto first = (*hub)->put_if_absent("k", as_bytes("1"));
  ASSERT_TRUE(first.ok()) << first.status().to_string();
  EXPECT_EQ((*hub)->put_if_absent("k", as_bytes("2")).status().code(), StatusCode::kAlreadyExists);
  EXPECT_TRUE((*hub)->put_if_match("k", as_bytes("3"), *first).ok());
  EXPECT_EQ((*hub)->put_if_match("k", as_bytes("4"), *first).status().code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ((*hub)->put_if_match("none", as_bytes("5"), *first).status().code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(as_text((*hub)->get("k")->bytes), "3");
}

// A write of `head` that another learner's overtakes: what conditions would have refused.
TEST_F(UnconditionalStoreTest, ASecondLearnerStopsBothAndTheirReaders) {
  const auto hub = open("&single-writer=yes").value();
  const HubLayout layout{"owner/run"};
  const ModelDescription description = test_description();
  PhiloxStream random{11, 0};
  const auto open_publisher = [&] {
    return Publisher::open(*hub, layout, description, test_key(), {3}, null_event_sink()).value();
  };
  const auto first = open_publisher();
  ASSERT_TRUE(first->publish(random_state(description, random), 0).ok());
  const auto before = hub->get(layout.head());
  ASSERT_TRUE(first->update_head(RunState::kPaused, 1).ok());
  const auto firsts = hub->get(layout.head());
  ASSERT_TRUE(hub->put(layout.head(), before->bytes).ok());
  const auto second = open_publisher();
  StateHolder worker(*hub, layout, description);
  ASSERT_TRUE(worker.poll().ok());
  ASSERT_TRUE(hub->put(layout.head(), firsts->bytes).ok());
  EXPECT_EQ(second->update_head(RunState::kRunning, 1).code(), StatusCode::kFailedPrecondition);
  const auto read = worker.poll();
  EXPECT_EQ(read.status().code(), StatusCode::kFailedPrecondition) << read.status().to_string();
  EXPECT_THAT(read.status().message(), ::testing::HasSubstr("two learners"));
}

TEST_F(S3StoreTest, KeepsPrefixesApart) {
  ASSERT_TRUE(store()->put("a", as_bytes("1")).ok());
  const auto other = open_s3_store(server().address(prefix_ + "/a2"), false, {}, server().options()).value();
  EXPECT_EQ(other->get("a").status().code(), StatusCode::kNotFound);
  EXPECT_TRUE(other->list("")->objects.empty());
  const auto above = open_s3_store(server().address("test"), false, {}, server().options()).value();
  EXPECT_EQ(as_text(above->get(prefix_.substr(5) + "/a")->bytes), "1");
}

TEST_F(S3StoreTest, IsRefusedWithKeysThatAreNotRight) {
  auto options = server().options();
  options.environment = [&, inner = options.environment](const char* name) {
    return std::string_view(name) == "AWS_SECRET_ACCESS_KEY" ? std::optional<std::string>("wrong") : inner(name);
  };
  const auto hub = open(options);
  ASSERT_TRUE(hub.ok()) << hub.status().to_string();
  const auto put = (*hub)->put("a", as_bytes("1"));
  EXPECT_EQ(put.status().code(), StatusCode::kPermissionDenied) << put.status().to_string();
  EXPECT_NE(put.status().message().find("the environment"), std::string::npos) << put.status().to_string();
}

TEST_F(S3StoreTest, NeedsKeysAndABucket) {
  S3Options without_keys;
  without_keys.environment = [](const char*) { return std::nullopt; };
  EXPECT_EQ(open(without_keys).status().code(), StatusCode::kPermissionDenied);
  S3Server other = server();
  other.bucket = "no-such-bucket";
  EXPECT_EQ(open_s3_store(other.address("a"), false, {}, server().options()).status().code(),
            StatusCode::kFailedPrecondition);
  EXPECT_EQ(open_s3_store(other.address("a"), true, {}, server().options()).status().code(),
            StatusCode::kFailedPrecondition);
}

TEST_F(S3StoreTest, LargeObjectsGoUpInParts) {
  auto options = server().options();
  options.multipart_bytes = 6 << 20;
  options.part_bytes = 5 << 20;
  const auto hub = open(options).value();
  Bytes bytes(11 << 20);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::uint8_t>(i * 2654435761u >> 11);
  const auto etag = hub->put_if_absent("large", bytes);
  ASSERT_TRUE(etag.ok()) << etag.status().to_string();
  EXPECT_NE(etag->find("-3"), std::string::npos) << *etag;
  const auto object = hub->get("large");
  ASSERT_TRUE(object.ok()) << object.status().to_string();
  EXPECT_EQ(object->bytes, bytes);
  EXPECT_EQ(object->etag, *etag);
  EXPECT_EQ(hub->put_if_absent("large", bytes).status().code(), StatusCode::kAlreadyExists);
  EXPECT_TRUE(hub->put("large", bytes).ok());
}

TEST_F(S3StoreTest, PassesOverWhatOthersPutIntoTheBucket) {
  const auto client = S3Client::open(server().address(prefix_), server().options(), {}).value();
  for (const char* key : {"a b", "a%20b", "\xc3\xa9", "a+b", "x&y<z>\"'", "dir/"}) {
    ASSERT_TRUE(client->call({.method = "PUT", .object = client->object_key(key)}).ok()) << key;
  }
  const auto hub = store();
  ASSERT_TRUE(hub->put("m", as_bytes("1")).ok());
  std::vector<std::string> keys;
  const auto listed = list_all(*hub, "");
  ASSERT_TRUE(listed.ok()) << listed.status().to_string();
  for (const ObjectInfo& info : *listed) keys.push_back(info.key);
  EXPECT_EQ(keys, std::vector<std::string>{"m"});
  const auto page = hub->list("", "", 1);
  ASSERT_TRUE(page.ok()) << page.status().to_string();
  EXPECT_TRUE(page->objects.empty());
  EXPECT_FALSE(page->next.empty());
  // An object that another program wrote has no digest.
  ASSERT_TRUE(client->call({.method = "PUT", .object = client->object_key("plain"), .body = as_bytes("x")}).ok());
  EXPECT_EQ(as_text(hub->get("plain")->bytes), "x");
}

TEST_F(S3StoreTest, SaysWhenAnObjectDoesNotMatchItsDigest) {
  const auto client = S3Client::open(server().address(prefix_), server().options(), {}).value();
  ASSERT_TRUE(client
                  ->call({.method = "PUT",
                          .object = client->object_key("k"),
                          .headers = {{"x-amz-meta-sha256", std::string(64, '0')}},
                          .body = as_bytes("x")})
                  .ok());
  EXPECT_EQ(store()->get("k").status().code(), StatusCode::kDataLoss);
}

TEST_F(S3StoreTest, AStopEndsAReadThatHasNotBegun) {
  const auto hub = store();
  ASSERT_TRUE(hub->put("k", as_bytes("x")).ok());
  std::stop_source stop;
  stop.request_stop();
  EXPECT_EQ(hub->get_range_unless_stopped("k", 0, 1, stop.get_token()).status().code(), StatusCode::kCancelled);
}

TEST_F(S3StoreTest, CarriesVersionsFromALearnerToAWorker) {
  const auto learner_hub = store(), worker_hub = store();
  carry_versions(*learner_hub, *worker_hub);
}

}  // namespace
}  // namespace flotilla
