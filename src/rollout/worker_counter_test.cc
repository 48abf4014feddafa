#include "rollout/worker_counter.h"

#include <gtest/gtest.h>

#include <limits>

#include "base/files.h"

namespace flotilla {
namespace {

class WorkerCounterTest : public testing::Test {
 protected:
  Result<std::unique_ptr<WorkerCounter>> open(const std::string& run = "owner/run") {
    return WorkerCounter::open(folder_.path(), run, WorkerId("w"));
  }
  Status write(std::string_view text) {
    return write_file_atomically(folder_.path() / "owner" / "run" / "w.json", text);
  }
  TemporaryFolder folder_;
};

TEST_F(WorkerCounterTest, NeverGivesACounterTwice) {
  {
    const auto counter = open().value();
    EXPECT_EQ(counter->take(4).value(), 0u);
    EXPECT_EQ(counter->take(2).value(), 4u);
  }
  const auto counter = open().value();
  EXPECT_EQ(counter->next(), 6u);
  EXPECT_EQ(counter->take(1).value(), 6u);
}

TEST_F(WorkerCounterTest, CountsEachRunForItself) {
  EXPECT_EQ(open().value()->take(4).value(), 0u);
  EXPECT_EQ(open("owner/other").value()->take(4).value(), 0u);
}

TEST_F(WorkerCounterTest, BelongsToOneProcess) {
  const auto counter = open().value();
  EXPECT_EQ(open().status().code(), StatusCode::kFailedPrecondition);
}

TEST_F(WorkerCounterTest, DoesNotGiveWhatItCannotWrite) {
  const auto counter = open().value();
  EXPECT_FALSE(counter->take(std::numeric_limits<std::uint64_t>::max()).ok() && counter->take(1).ok());
  const auto other = open("owner/other").value();
  std::filesystem::remove_all(folder_.path() / "owner" / "other");
  ASSERT_TRUE(write_file_atomically(folder_.path() / "owner" / "other", std::string_view("in the way")).ok());
  EXPECT_FALSE(other->take(1).ok());
  EXPECT_EQ(other->next(), 0u);
}

TEST_F(WorkerCounterTest, RefusesAFileThatItDoesNotUnderstand) {
  for (const char* text :
       {"", "[]", "{}", R"({"format":2,"next":1,"run":"owner/run","worker":"w"})",
        R"({"format":1,"next":1,"run":"owner/other","worker":"w"})",
        R"({"format":1,"next":1,"run":"owner/run","worker":"v"})",
        R"({"format":1,"next":-1,"run":"owner/run","worker":"w"})", R"({"format":1,"run":"owner/run","worker":"w"})"}) {
    ASSERT_TRUE(write(text).ok());
    EXPECT_EQ(open().status().code(), StatusCode::kDataLoss) << text;
  }
}

TEST(WorkerIds, BeginLikeTheFingerprintOfTheKey) {
  const auto key = SigningKey::generate().value();
  EXPECT_EQ(worker_id(key->public_key()).value(), fingerprint(key->public_key()).substr(7, 32));
}

}  // namespace
}  // namespace flotilla
