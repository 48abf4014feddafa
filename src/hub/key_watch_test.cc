#include "hub/key_watch.h"

#include <gtest/gtest.h>

#include <optional>
#include <semaphore>

namespace flotilla {
namespace {

using namespace std::chrono_literals;

class KeyWatchTest : public ::testing::Test {
 protected:
  std::string look(const std::string& key) {
    const std::lock_guard lock(mutex_);
    ++looks_;
    return states_[key];
  }
  void change(const std::string& key) {
    const std::lock_guard lock(mutex_);
    states_[key] += "x";
  }
  int looks() {
    const std::lock_guard lock(mutex_);
    return looks_;
  }

  std::mutex mutex_;
  std::map<std::string, std::string> states_;
  int looks_ = 0;
  std::counting_semaphore<> first_{0}, second_{0}, other_{0};
  KeyWatch watch_{[this](const std::string& key) { return look(key); }, 1ms};
};

TEST_F(KeyWatchTest, AllWhoWaitForAKeyHearOfEachChange) {
  const KeyWatch::Waiter first(watch_, "a", [this] { first_.release(); });
  const KeyWatch::Waiter second(watch_, "a", [this] { second_.release(); });
  const KeyWatch::Waiter other(watch_, "b", [this] { other_.release(); });
  for (int round = 0; round < 3; ++round) {
    change("a");
    EXPECT_TRUE(first_.try_acquire_for(1min));
    EXPECT_TRUE(second_.try_acquire_for(1min));
  }
  EXPECT_FALSE(other_.try_acquire());
  change("b");
  EXPECT_TRUE(other_.try_acquire_for(1min));
}

TEST_F(KeyWatchTest, WhoHasLeftHearsNothing) {
  std::optional<KeyWatch::Waiter> first;
  first.emplace(watch_, "a", [this] { first_.release(); });
  const KeyWatch::Waiter second(watch_, "a", [this] { second_.release(); });
  first.reset();
  change("a");
  EXPECT_TRUE(second_.try_acquire_for(1min));
  EXPECT_FALSE(first_.try_acquire());
}

TEST_F(KeyWatchTest, NobodyWaitsNobodyLooks) {
  {
    const KeyWatch::Waiter first(watch_, "a", [] {});
  }
  std::this_thread::sleep_for(10ms);  // a look may be under way
  const int before = looks();
  std::this_thread::sleep_for(30ms);
  EXPECT_EQ(looks(), before);
}

}  // namespace
}  // namespace flotilla
