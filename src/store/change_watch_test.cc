#include "store/change_watch.h"

#include <gtest/gtest.h>

#include <atomic>
#include <semaphore>

namespace flotilla {
namespace {

using namespace std::chrono_literals;

// Waits as a server does that knows how to: each request ends when the test says so, or the watch.
class Server {
 public:
  std::counting_semaphore<> asked{0};
  std::atomic<int> requests{0};

  Result<std::optional<Object>> ask(const ETag& known, const std::stop_token& stop) {
    std::unique_lock lock(mutex_);
    ++requests;
    asked.release();
    if (!changed_.wait(lock, stop, [&] { return answer_.has_value() || tag_ != known; })) return cancelled("stop");
    if (auto answer = std::exchange(answer_, std::nullopt)) return *std::move(answer);
    return std::optional(Object{{}, tag_});
  }
  void move_to(const ETag& tag) {
    const std::lock_guard lock(mutex_);
    tag_ = tag;
    changed_.notify_all();
  }
  void answer(Result<std::optional<Object>> result) {
    const std::lock_guard lock(mutex_);
    answer_ = std::move(result);
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable_any changed_;
  ETag tag_ = "1";
  std::optional<Result<std::optional<Object>>> answer_;
};

class ChangeWatchTest : public ::testing::Test {
 protected:
  // The tag that came, or what came in its place.
  std::string wait(const ETag& known, std::chrono::milliseconds time, std::chrono::milliseconds look = 1ms) {
    const auto found = watch_.wait(known, {.time = time, .look = look});
    if (!found.ok()) return std::string(status_code_name(found.status().code()));
    return *found ? (*found)->etag : "nothing";
  }
  Server server_;
  ChangeWatch watch_{[this](const ETag& known, const std::stop_token& stop) { return server_.ask(known, stop); }};
};

TEST_F(ChangeWatchTest, WhoLeavesAndComesBackFindsTheSameRequest) {
  EXPECT_EQ(wait("1", 5ms), "nothing");
  EXPECT_EQ(wait("1", 5ms), "nothing");
  std::stop_source stop;
  stop.request_stop();
  EXPECT_EQ(watch_.wait("1", {.time = 1min, .stop = stop.get_token()}).status().code(), StatusCode::kCancelled);
  server_.move_to("2");
  EXPECT_EQ(wait("1", 1min), "2");
  EXPECT_EQ(server_.requests, 1);
}

TEST_F(ChangeWatchTest, AnAnswerThatCameMeanwhileIsKept) {
  EXPECT_EQ(wait("1", 0ms), "nothing");
  server_.asked.acquire();
  server_.move_to("2");
  EXPECT_EQ(wait("1", 1min), "2");
  EXPECT_EQ(server_.requests, 1);
}

TEST_F(ChangeWatchTest, WhoKnowsMoreIsNotToldWhatItKnows) {
  EXPECT_EQ(wait("1", 0ms), "nothing");
  server_.asked.acquire();
  server_.move_to("2");
  EXPECT_EQ(wait("2", 5ms), "nothing");
  server_.move_to("3");
  EXPECT_EQ(wait("2", 1min), "3");
}

TEST_F(ChangeWatchTest, AServerThatDoesNotWaitIsAskedAtIntervals) {
  std::jthread answers([&](const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      if (server_.asked.try_acquire_for(1ms)) server_.answer(std::optional<Object>());
    }
  });
  EXPECT_EQ(wait("1", 50ms, 20ms), "nothing");
  EXPECT_GE(server_.requests, 2);
  EXPECT_LE(server_.requests, 4);
  const int before = server_.requests;
  std::this_thread::sleep_for(60ms);
  EXPECT_LE(server_.requests, before + 1) << "nobody waits any more";
}

TEST_F(ChangeWatchTest, AnErrorIsOfWhoWaits) {
  std::jthread answers([&] {
    server_.asked.acquire();
    server_.answer(unavailable("away"));
  });
  EXPECT_EQ(wait("1", 1min), "unavailable");
  server_.move_to("2");
  EXPECT_EQ(wait("1", 1min), "2");
}

}  // namespace
}  // namespace flotilla
