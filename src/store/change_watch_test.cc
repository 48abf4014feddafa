#include "store/change_watch.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
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
  const auto begin = std::chrono::steady_clock::now();
  std::stop_source stop;
  auto waiting = std::async(std::launch::async, [&] {
    return watch_.wait("1", {.time = 1min, .look = 20ms, .stop = stop.get_token()}).status().code();
  });
  for (int request = 0; request < 3; ++request) {
    if (request > 0) server_.answer(std::optional<Object>());
    server_.asked.acquire();
  }
  EXPECT_GE(std::chrono::steady_clock::now() - begin, 40ms);
  stop.request_stop();
  EXPECT_EQ(waiting.get(), StatusCode::kCancelled);
  server_.answer(std::optional<Object>());
  EXPECT_EQ(wait("0", 1min), "1");
  EXPECT_EQ(server_.requests, 4) << "nobody has waited any more";
}

TEST_F(ChangeWatchTest, MayEndWhileItPausesBetweenTwoRequests) {
  ChangeWatch watch([](const ETag&, const std::stop_token&) { return std::optional<Object>(); });
  EXPECT_FALSE(watch.wait("1", {.time = 5ms, .look = 1min}).value());
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
