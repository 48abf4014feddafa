#include "rollout/version_watch.h"

#include <gtest/gtest.h>

#include <functional>
#include <thread>

#include "rollout/run_for_tests.h"

namespace flotilla {
namespace {

using std::chrono::milliseconds;

class VersionWatchTest : public testing::Test {
 protected:
  VersionWatchTest() { run_.publish(); }

  std::unique_ptr<Subscriber> subscriber() {
    auto subscriber =
        Subscriber::create(*run_.store, run_.layout, toy_model().description, run_.learner->public_key(),
                           null_event_sink(), {.held = [this](TensorIndex i) { return held_->tensor(i); }});
    FLOTILLA_CHECK(held_->load((*subscriber->pull())->weights).ok());
    subscriber->hold();
    return subscriber;
  }
  static VersionWatch::Options options(bool fetch) {
    return {.fetch = fetch,
            .poll = milliseconds(1),
            .retry = {.first = milliseconds(1), .last = milliseconds(2), .give_up = milliseconds(50)}};
  }
  // False when it does not come true within a minute.
  static bool comes_true(const std::function<bool()>& condition) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(1);
    while (!condition()) {
      if (std::chrono::steady_clock::now() > end) return false;
      std::this_thread::yield();
    }
    return true;
  }

  ToyRun run_;
  const std::unique_ptr<Engine> held_ = toy_engine();
};

TEST_F(VersionWatchTest, GivesEachNewVersionOnce) {
  const auto subscriber = this->subscriber();
  VersionWatch watch(*subscriber, Version(0), options(true), null_event_sink(), system_clock());
  std::optional<VersionWatch::Fetched> fetched;
  for (std::uint64_t version = 1; version <= 3; ++version) {
    run_.publish();
    ASSERT_TRUE(comes_true([&] { return (fetched = watch.take()).has_value(); }));
    EXPECT_EQ(fetched->version.version, Version(version));
    EXPECT_EQ(fetched->version.path, "delta " + std::to_string(version));
    ASSERT_TRUE(held_->load(fetched->version.weights).ok());
    watch.loaded();
  }
  EXPECT_FALSE(watch.take());
}

TEST_F(VersionWatchTest, FetchesNothingBetweenTakingAVersionAndHavingLoadedIt) {
  const auto subscriber = this->subscriber();
  std::optional<VersionWatch::Fetched> fetched;
  {
    VersionWatch watch(*subscriber, Version(0), options(true), null_event_sink(), system_clock());
    run_.publish();
    ASSERT_TRUE(comes_true([&] { return (fetched = watch.take()).has_value(); }));
    run_.publish();
    // Two looks at head after the second version is out.
    for (const std::int64_t wanted : {1, 2}) {
      run_.want(wanted);
      ASSERT_TRUE(comes_true([&] { return watch.head() && watch.head()->wanted == wanted; }));
    }
    EXPECT_FALSE(watch.take());
    ASSERT_TRUE(held_->load(fetched->version.weights).ok());
    watch.loaded();
    ASSERT_TRUE(comes_true([&] { return (fetched = watch.take()).has_value(); }));
    EXPECT_EQ(fetched->version.path, "delta 2") << "of what was loaded";
  }
  EXPECT_EQ(subscriber->held(), Version(1)) << "the second one was not loaded";
}

TEST_F(VersionWatchTest, LeavesWhatWasLoadedAsHeld) {
  const auto subscriber = this->subscriber();
  {
    VersionWatch watch(*subscriber, Version(0), options(true), null_event_sink(), system_clock());
    run_.publish();
    std::optional<VersionWatch::Fetched> fetched;
    ASSERT_TRUE(comes_true([&] { return (fetched = watch.take()).has_value(); }));
    ASSERT_TRUE(held_->load(fetched->version.weights).ok());
    watch.loaded();
  }
  EXPECT_EQ(subscriber->held(), Version(1));
}

TEST_F(VersionWatchTest, OnlyLooksWhenNotAskedToFetch) {
  const auto subscriber = this->subscriber();
  VersionWatch watch(*subscriber, Version(0), options(false), null_event_sink(), system_clock());
  run_.publish();
  ASSERT_TRUE(comes_true([&] { return watch.head() && watch.head()->version == Version(1); }));
  EXPECT_FALSE(watch.take());
  EXPECT_EQ(subscriber->held(), Version(0));
}

TEST_F(VersionWatchTest, HasNoHeadAfterAnErrorThatStays) {
  const auto subscriber = this->subscriber();
  VersionWatch watch(*subscriber, Version(0), options(true), null_event_sink(), system_clock());
  ASSERT_TRUE(comes_true([&] { return watch.head().has_value(); }));
  const auto head = run_.store->get(run_.layout.head()).value();
  ASSERT_TRUE(run_.store->put_if_match(run_.layout.head(), as_bytes("not a head"), head.etag).ok());
  EXPECT_TRUE(comes_true([&] { return !watch.head(); }));
}

}  // namespace
}  // namespace flotilla
