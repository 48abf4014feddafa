#include "hub/key_watch.h"

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <semaphore>
#include <vector>

namespace flotilla {
namespace {

using namespace std::chrono_literals;

class KeyWatchTest : public ::testing::Test {
 protected:
  std::string look(const std::string& key) {
    const std::lock_guard lock(mutex_);
    ++looks_[key];
    return states_[key];
  }
  void change(const std::string& key) {
    const std::lock_guard lock(mutex_);
    states_[key] += "x";
  }
  int looks(const std::string& key) {
    const std::lock_guard lock(mutex_);
    return looks_[key];
  }

  std::mutex mutex_;
  std::map<std::string, std::string> states_;
  std::map<std::string, int> looks_;
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
  const KeyWatch::Waiter second(watch_, "b", [this] { second_.release(); });
  const auto round = [this] {
    change("b");
    EXPECT_TRUE(second_.try_acquire_for(1min));
  };
  round();  // one that looks at "a" may be under way
  const int before = looks("a");
  round();
  round();
  EXPECT_EQ(looks("a"), before);
}

TEST_F(KeyWatchTest, OfTooManyKeysTheLaterOnesDoNotRing) {
  std::vector<std::unique_ptr<KeyWatch::Waiter>> many;
  for (std::size_t i = 0; i < KeyWatch::kKeysMax; ++i) {
    many.push_back(std::make_unique<KeyWatch::Waiter>(watch_, std::to_string(i), [this] { first_.release(); }));
  }
  {
    const KeyWatch::Waiter late(watch_, "late", [this] { other_.release(); });
    const KeyWatch::Waiter second(watch_, "0", [this] { second_.release(); });
    for (const char* key : {"late", "0"}) change(key);
    EXPECT_TRUE(second_.try_acquire_for(1min)) << "a key that is watched already is no further one";
    EXPECT_TRUE(first_.try_acquire_for(1min));
    EXPECT_FALSE(other_.try_acquire());
    EXPECT_EQ(looks("late"), 0);
  }
  many.pop_back();
  const KeyWatch::Waiter next(watch_, "late", [this] { other_.release(); });
  change("late");
  EXPECT_TRUE(other_.try_acquire_for(1min));
}

}  // namespace
}  // namespace flotilla
