#include "hub/token_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <atomic>
#include <fstream>
#include <set>
#include <sstream>
#include <thread>

#include <fmt/format.h>

#include "base/files.h"

namespace flotilla {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

const HubGrant kWorker{HubRole::kWorker, "ada/demo", "w1"};

class TokenStoreTest : public ::testing::Test {
 protected:
  std::filesystem::path state() const { return folder_.path() / "hub.state"; }
  std::unique_ptr<TokenStore> open() const { return TokenStore::open(state()).value(); }
  std::string everything() const {
    std::string all;
    for (const auto& file : std::filesystem::directory_iterator(state())) all += read_text_file(file.path()).value();
    return all;
  }
  TemporaryFolder folder_;
};

TEST_F(TokenStoreTest, ATokenIsFoundAgainWithItsSecret) {
  const auto issued =
      open()->add(kWorker, {.object_bytes_max = 5, .requests_per_s = 2.5, .written_bytes_max = 9}).value();
  const auto store = open();
  const HubToken found = store->find(issued.token.id).value();
  EXPECT_EQ(found.grant.scope, "ada/demo");
  EXPECT_EQ(found.grant.worker, "w1");
  EXPECT_EQ(found.limits.object_bytes_max, 5u);
  EXPECT_EQ(found.limits.requests_per_s, 2.5);
  EXPECT_EQ(found.limits.written_bytes_max, 9u);
  EXPECT_EQ(found.created, issued.token.created);
  EXPECT_EQ(store->secret_of(issued.token.id).value(), issued.secret);
  EXPECT_EQ(issued.secret.size(), 43u);
  EXPECT_EQ(store->find("FHNOBODY").status().code(), StatusCode::kNotFound);
  EXPECT_EQ(store->find("' OR 1 = 1 --").status().code(), StatusCode::kNotFound);
  EXPECT_EQ(store->add({HubRole::kWorker, "ada", "w1"}, {}).status().code(), StatusCode::kInvalidArgument);
}

TEST_F(TokenStoreTest, NothingOnDiskIsASecret) {
  const auto issued = open()->add(kWorker, {}).value();
  EXPECT_THAT(everything(), HasSubstr(issued.token.id));
  EXPECT_THAT(everything(), Not(HasSubstr(issued.secret)));
  struct stat info {};
  for (const char* file : {"hub.db", "hub.key"}) {
    ASSERT_EQ(::stat((state() / file).c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 0777, 0600u) << file;
  }
  ASSERT_EQ(::stat(state().c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0700u);
}

TEST_F(TokenStoreTest, AnotherKeyIsNoticed) {
  const auto issued = open()->add(kWorker, {}).value();
  std::filesystem::remove(state() / "hub.key");
  const auto status = open()->secret_of(issued.token.id).status();
  EXPECT_EQ(status.code(), StatusCode::kInternal);
  EXPECT_THAT(status.message(), HasSubstr("another hub.key"));
}

TEST_F(TokenStoreTest, AKeyThatOthersReadOrThatIsCutIsRefused) {
  open();
  std::filesystem::permissions(state() / "hub.key", std::filesystem::perms(0640));
  EXPECT_EQ(TokenStore::open(state()).status().code(), StatusCode::kPermissionDenied);
  std::filesystem::permissions(state() / "hub.key", std::filesystem::perms(0600));
  std::filesystem::resize_file(state() / "hub.key", 31);
  EXPECT_EQ(TokenStore::open(state()).status().code(), StatusCode::kDataLoss);
}

TEST_F(TokenStoreTest, ARevocationIsSeenByAProcessThatIsThere) {
  const auto serving = open();
  const auto issued = open()->add(kWorker, {}).value();
  EXPECT_FALSE(serving->find(issued.token.id)->revoked);
  EXPECT_TRUE(open()->revoke(issued.token.id).ok());
  EXPECT_TRUE(serving->find(issued.token.id)->revoked);
  EXPECT_EQ(serving->revoke("FHNOBODY").code(), StatusCode::kNotFound);
  EXPECT_EQ(serving->list()->size(), 1u);
}

TEST_F(TokenStoreTest, BytesAndLimitsAreKept) {
  const auto issued = open()->add(kWorker, {}).value();
  EXPECT_TRUE(open()->add_written(issued.token.id, 5).ok());
  EXPECT_TRUE(open()->add_written(issued.token.id, 7).ok());
  EXPECT_EQ(open()->find(issued.token.id)->written_bytes, 12u);
  EXPECT_EQ(open()->owner("ada")->bytes_max, 0u);
  EXPECT_TRUE(open()->set_owner("ada", {100, 3}).ok());
  EXPECT_EQ(open()->owner("ada")->bytes_max, 100u);
  EXPECT_EQ(open()->owner("ada")->keep_days, 3);
  EXPECT_EQ(open()->set_owner("ada/demo", {}).code(), StatusCode::kInvalidArgument);
}

TEST_F(TokenStoreTest, ATokenIsBoundToTheFirstWorkerAndAWorkerToOneToken) {
  const auto store = open();
  const auto add = [&](const std::string& scope, const std::string& worker) {
    return store->add({HubRole::kWorker, scope, worker}, {}).value().token.id;
  };
  const std::string first = add("ada/demo", ""), second = add("ada/demo", "");
  std::atomic<int> bound = 0;
  {
    std::vector<std::jthread> threads;
    for (int i = 0; i < 8; ++i) {
      threads.emplace_back([&, i] { bound += open()->bind_worker(first, fmt::format("w{}", i)).ok(); });
    }
  }
  EXPECT_EQ(bound, 1);
  const std::string worker = store->find(first)->grant.worker;
  EXPECT_TRUE(store->bind_worker(first, worker).ok()) << "again";
  EXPECT_EQ(store->bind_worker(first, "other").code(), StatusCode::kPermissionDenied);
  EXPECT_EQ(store->bind_worker(second, worker).code(), StatusCode::kPermissionDenied) << "has a token";
  EXPECT_TRUE(store->bind_worker(add("ada/other", ""), worker).ok()) << "of another run";
  EXPECT_TRUE(store->revoke(first).ok());
  EXPECT_TRUE(store->bind_worker(second, worker).ok()) << "its token was revoked";
  EXPECT_TRUE(store->bind_worker(add("ada/demo", worker), worker).ok())
      << "made for it, to take the place of the other";
  const auto reader = store->add({HubRole::kReader, "ada/demo", ""}, {}).value().token.id;
  EXPECT_EQ(store->bind_worker(reader, "w").code(), StatusCode::kPermissionDenied);
}

TEST_F(TokenStoreTest, ThoseWhoBeginTogetherHaveOneKey) {
  std::vector<std::string> secrets(8);
  {
    std::vector<std::jthread> threads;
    for (std::string& secret : secrets) {
      threads.emplace_back([&] {
        const auto store = open();
        const auto issued = store->add(kWorker, {}).value();
        secret = store->secret_of(issued.token.id).value() == issued.secret ? issued.token.id : "";
      });
    }
  }
  const auto store = open();
  for (const std::string& id : secrets) EXPECT_TRUE(store->secret_of(id).ok()) << id;
  EXPECT_EQ(std::set<std::string>(secrets.begin(), secrets.end()).size(), 8u);
}

TEST_F(TokenStoreTest, WhatIsNoDatabaseIsSaidSo) {
  open();
  for (const char* file : {"hub.db", "hub.db-wal", "hub.db-shm"}) std::filesystem::remove(state() / file);
  std::ofstream(state() / "hub.db") << std::string(4096, 'x');
  EXPECT_EQ(TokenStore::open(state()).status().code(), StatusCode::kDataLoss);
}

}  // namespace
}  // namespace flotilla
