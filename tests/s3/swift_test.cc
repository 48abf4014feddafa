// The S3 client against Swift's s3api, which writes with If-None-Match and refuses If-Match.
// tests/oracles/swift_server.py says what it needs; FLOTILLA_SWIFT is the virtual environment that has it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <nlohmann/json.hpp>

#include <fmt/format.h>

#include "base/files.h"
#include "server_process.h"
#include "store/s3_store.h"
#include "versions_for_tests.h"

namespace flotilla {
namespace {

struct Swift {
  explicit Swift(const std::string& environment)
      : process({environment + "/bin/python", "tests/oracles/swift_server.py", folder.path().string()}) {}
  TemporaryFolder folder;
  ServerProcess process;
};

class SwiftTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const char* environment = std::getenv("FLOTILLA_SWIFT");
    if (environment == nullptr) GTEST_SKIP() << "FLOTILLA_SWIFT is not set";
    static const Swift swift(environment);
    said_ = nlohmann::json::parse(swift.process.line(), nullptr, false);
    ASSERT_TRUE(said_.is_object()) << "Swift did not start";
    options_.environment = [this](const char* name) -> std::optional<std::string> {
      if (std::string_view(name) == "AWS_ACCESS_KEY_ID") return said_["access_key"].get<std::string>();
      if (std::string_view(name) == "AWS_SECRET_ACCESS_KEY") return said_["secret_key"].get<std::string>();
      return std::nullopt;
    };
  }
  Result<std::unique_ptr<ObjectStore>> open(const std::string& prefix, bool create, const std::string& setting = {}) {
    return open_s3_store(fmt::format("s3://{}/{}?endpoint=http://127.0.0.1:{}{}", said_["bucket"].get<std::string>(),
                                     prefix, said_["port"].get<int>(), setting),
                         create, {}, options_);
  }

  nlohmann::json said_;
  S3Options options_;
};

TEST_F(SwiftTest, IsNoHubWithoutASingleWriter) {
  const auto refused = open("probe", true);
  EXPECT_EQ(refused.status().code(), StatusCode::kFailedPrecondition) << refused.status().to_string();
  EXPECT_THAT(refused.status().message(), ::testing::HasSubstr("--single-writer"));
  EXPECT_TRUE(open("probe", true, "&single-writer=yes").ok());
}

TEST_F(SwiftTest, ObjectsGoUpAndComeDown) {
  options_.multipart_bytes = 6 << 20;
  options_.part_bytes = 5 << 20;
  const auto hub = open("objects", false).value();
  Bytes bytes(11 << 20);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::uint8_t>(i * 2654435761u >> 11);
  for (const auto& [key, size] : {std::pair("empty", 0), std::pair("small", 1000), std::pair("large", 11 << 20)}) {
    const ByteSpan part = ByteSpan(bytes).first(static_cast<std::size_t>(size));
    const auto put = hub->put(key, part);
    ASSERT_TRUE(put.ok()) << key << ": " << put.status().to_string();
    const auto got = hub->get(key);
    ASSERT_TRUE(got.ok()) << key << ": " << got.status().to_string();
    EXPECT_TRUE(std::ranges::equal(got->bytes, part)) << key;
    EXPECT_EQ(hub->head(key)->size, part.size());
  }
  EXPECT_EQ(*hub->get_range("large", 6'000'000, 1000), Bytes(bytes.begin() + 6'000'000, bytes.begin() + 6'001'000));
  EXPECT_EQ(hub->put_if_absent("small", as_bytes("x")).status().code(), StatusCode::kAlreadyExists);
  EXPECT_TRUE(hub->put_if_absent("fresh", as_bytes("x")).ok());
  EXPECT_EQ(hub->get("none").status().code(), StatusCode::kNotFound);
  EXPECT_TRUE(hub->remove("small").ok());
  EXPECT_TRUE(hub->remove("small").ok());
  EXPECT_EQ(hub->get("small").status().code(), StatusCode::kNotFound);
}

TEST_F(SwiftTest, AListingIsWholeAndInOrder) {
  const auto hub = open("listing", false).value();
  for (int i = 0; i < 25; ++i) ASSERT_TRUE(hub->put(fmt::format("a/{:03}", i * 7 % 25), as_bytes("x")).ok());
  std::vector<std::string> keys;
  std::string after;
  do {
    const auto page = hub->list("a/", after, 10);
    ASSERT_TRUE(page.ok()) << page.status().to_string();
    for (const ObjectInfo& info : page->objects) keys.push_back(info.key);
    after = page->next;
  } while (!after.empty());
  EXPECT_EQ(keys.size(), 25u);
  EXPECT_TRUE(std::ranges::is_sorted(keys));
}

TEST_F(SwiftTest, AWrongSecretIsRefused) {
  options_.environment = [inner = options_.environment](const char* name) {
    return std::string_view(name) == "AWS_SECRET_ACCESS_KEY" ? std::optional<std::string>("wrong") : inner(name);
  };
  EXPECT_EQ(open("secret", false).value()->put("k", as_bytes("1")).status().code(), StatusCode::kPermissionDenied);
}

TEST_F(SwiftTest, CarriesVersionsFromALearnerToAWorker) {
  const auto learner_hub = open("run", true, "&single-writer=yes").value(), worker_hub = open("run", false).value();
  carry_versions(*learner_hub, *worker_hub);
}

}  // namespace
}  // namespace flotilla
