#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <set>
#include <thread>

#include <fmt/format.h>

#include "base/files.h"
#include "base/philox.h"
#include "store/object_store.h"

// One suite for all implementations of ObjectStore: what a hub promises does not depend on what it is made of. A test
// program includes it once and instantiates ObjectStoreTest.
namespace flotilla {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

struct Hub {
  std::unique_ptr<TemporaryFolder> folder;
  std::unique_ptr<ObjectStore> inner;
  std::unique_ptr<ObjectStore> store;
};

struct Implementation {
  std::string name;
  std::function<Hub()> make;
  bool has_folders = true;       // and so sees that a key continues another one
  std::size_t prefix_bytes = 0;  // at most, of what stands before its keys and counts as theirs
};

class ObjectStoreTest : public ::testing::TestWithParam<Implementation> {
 protected:
  void SetUp() override { hub_ = GetParam().make(); }
  ObjectStore& store() { return *hub_.store; }

  StatusCode put(std::string_view key, std::string_view text) {
    return store().put_if_absent(key, as_bytes(text)).status().code();
  }
  std::string text(std::string_view key) {
    const auto object = store().get(key);
    return object.ok() ? std::string(as_text(object->bytes)) : object.status().to_string();
  }
  std::vector<std::string> keys(std::string_view prefix, std::string_view after = {}, std::size_t limit = 1000) {
    const auto page = store().list(prefix, after, limit);
    EXPECT_TRUE(page.ok()) << page.status().to_string();
    std::vector<std::string> result;
    if (page.ok()) {
      for (const ObjectInfo& info : page->objects) result.push_back(info.key);
    }
    return result;
  }

  Hub hub_;
};

TEST_P(ObjectStoreTest, ReturnsWhatWasPut) {
  const auto etag = store().put_if_absent("a/b/c", as_bytes("hello"));
  ASSERT_TRUE(etag.ok()) << etag.status().to_string();
  const auto object = store().get("a/b/c");
  ASSERT_TRUE(object.ok());
  EXPECT_EQ(as_text(object->bytes), "hello");
  EXPECT_EQ(object->etag, *etag);
  const auto info = store().head("a/b/c");
  ASSERT_TRUE(info.ok());
  EXPECT_EQ(info->key, "a/b/c");
  EXPECT_EQ(info->size, 5u);
  EXPECT_EQ(info->etag, *etag);
}

TEST_P(ObjectStoreTest, HoldsAnEmptyObjectAndALargeOne) {
  ASSERT_EQ(put("empty", ""), StatusCode::kOk);
  EXPECT_EQ(text("empty"), "");
  Bytes large(5'000'000);
  for (std::size_t i = 0; i < large.size(); ++i) large[i] = static_cast<std::uint8_t>(i * 2654435761u >> 13);
  ASSERT_TRUE(store().put_if_absent("large", large).ok());
  const auto object = store().get("large");
  ASSERT_TRUE(object.ok());
  EXPECT_EQ(object->bytes, large);
}

TEST_P(ObjectStoreTest, AMissingObjectIsNotFound) {
  ASSERT_EQ(put("a/b", "x"), StatusCode::kOk);
  for (const char* key : {"missing", "a/missing", "missing/b", "a", "a/b/c"}) {
    EXPECT_EQ(store().get(key).status().code(), StatusCode::kNotFound) << key;
    EXPECT_EQ(store().get_range(key, 0, 1).status().code(), StatusCode::kNotFound) << key;
    EXPECT_EQ(store().head(key).status().code(), StatusCode::kNotFound) << key;
  }
}

TEST_P(ObjectStoreTest, ARangeIsClippedAtTheEnd) {
  ASSERT_EQ(put("k", "0123456789"), StatusCode::kOk);
  const auto range = [&](std::uint64_t offset, std::uint64_t length) {
    const auto bytes = store().get_range("k", offset, length);
    return bytes.ok() ? std::string(as_text(*bytes)) : std::string(status_code_name(bytes.status().code()));
  };
  EXPECT_EQ(range(0, 3), "012");
  EXPECT_EQ(range(7, 3), "789");
  EXPECT_EQ(range(7, 100), "789");
  EXPECT_EQ(range(2, ~std::uint64_t{0}), "23456789");
  EXPECT_EQ(range(10, 5), "");
  EXPECT_EQ(range(3, 0), "");
  EXPECT_EQ(range(11, 1), "invalid_argument");
}

TEST_P(ObjectStoreTest, AChangeIsSeenWhileItIsWaitedFor) {
  using namespace std::chrono_literals;
  EXPECT_EQ(store().get_when_changed("head", "", 100, {}).status().code(), StatusCode::kNotFound);
  ASSERT_EQ(put("head", "0123456789"), StatusCode::kOk);
  const auto first = store().get_when_changed("head", "", 4, {.time = 1min});
  ASSERT_TRUE(first.ok()) << first.status().to_string();
  ASSERT_TRUE(*first);
  EXPECT_EQ(as_text((*first)->bytes), "0123");
  const auto same = store().get_when_changed("head", (*first)->etag, 4, {.time = 5ms, .look = 1ms});
  ASSERT_TRUE(same.ok()) << same.status().to_string();
  EXPECT_FALSE(*same);
  EXPECT_FALSE(*store().get_when_changed("head", (*first)->etag, 4, {}));
  std::jthread writer([&] {
    std::this_thread::sleep_for(20ms);
    EXPECT_TRUE(store().put("head", as_bytes("abc")).ok());
  });
  const auto second = store().get_when_changed("head", (*first)->etag, 4, {.time = 1min, .look = 1ms});
  ASSERT_TRUE(second.ok()) << second.status().to_string();
  ASSERT_TRUE(*second);
  EXPECT_EQ(as_text((*second)->bytes), "abc");
  std::stop_source stop;
  std::jthread stopper([&] {
    std::this_thread::sleep_for(20ms);
    stop.request_stop();
  });
  const Watching watching{.time = 1min, .look = 1ms, .stop = stop.get_token()};
  EXPECT_EQ(store().get_when_changed("head", (*second)->etag, 4, watching).status().code(), StatusCode::kCancelled);
}

TEST_P(ObjectStoreTest, CreationDoesNotReplaceEvenEqualBytes) {
  ASSERT_EQ(put("k", "first"), StatusCode::kOk);
  EXPECT_EQ(put("k", "second"), StatusCode::kAlreadyExists);
  EXPECT_EQ(put("k", "first"), StatusCode::kAlreadyExists);
  EXPECT_EQ(text("k"), "first");
}

TEST_P(ObjectStoreTest, ReplacesOnlyWhatTheTagNames) {
  EXPECT_EQ(store().put_if_match("k", as_bytes("x"), "no tag").status().code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(store().get("k").status().code(), StatusCode::kNotFound);
  const auto first = store().put_if_absent("k", as_bytes("1"));
  ASSERT_TRUE(first.ok());
  const auto second = store().put_if_match("k", as_bytes("2"), *first);
  ASSERT_TRUE(second.ok()) << second.status().to_string();
  EXPECT_NE(*first, *second);
  EXPECT_EQ(store().put_if_match("k", as_bytes("3"), *first).status().code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(text("k"), "2");
  EXPECT_EQ(store().head("k")->etag, *second);
}

TEST_P(ObjectStoreTest, EqualTagsMeanEqualBytes) {
  std::set<ETag> tags;
  for (int i = 0; i < 200; ++i) tags.insert(*store().put("k", as_bytes(fmt::format("{:03}", i))));
  EXPECT_EQ(tags.size(), 200u);
}

TEST_P(ObjectStoreTest, PutCreatesAndReplaces) {
  ASSERT_TRUE(store().put("w/status", as_bytes("1")).ok());
  ASSERT_TRUE(store().put("w/status", as_bytes("22")).ok());
  EXPECT_EQ(text("w/status"), "22");
}

TEST_P(ObjectStoreTest, RemovalIsFinalAndMayBeRepeated) {
  ASSERT_EQ(put("a/b/c", "x"), StatusCode::kOk);
  ASSERT_EQ(put("a/b/d", "y"), StatusCode::kOk);
  EXPECT_TRUE(store().remove("a/b/c").ok());
  EXPECT_TRUE(store().remove("a/b/c").ok());
  EXPECT_TRUE(store().remove("never/was").ok());
  EXPECT_EQ(store().get("a/b/c").status().code(), StatusCode::kNotFound);
  EXPECT_THAT(keys(""), ElementsAre("a/b/d"));
  EXPECT_TRUE(store().remove("a/b/d").ok());
  EXPECT_THAT(keys(""), IsEmpty());
  EXPECT_EQ(put("a/b/c", "again"), StatusCode::kOk);
  EXPECT_EQ(put("a/e", "z"), StatusCode::kOk);
}

TEST_P(ObjectStoreTest, RemovalOfAFolderNameRemovesNothing) {
  ASSERT_EQ(put("a/b", "x"), StatusCode::kOk);
  EXPECT_TRUE(store().remove("a").ok());
  EXPECT_EQ(text("a/b"), "x");
}

TEST_P(ObjectStoreTest, ListsInByteOrderOfWholeKeys) {
  // '-' and '.' sort before '/', digits and letters after it.
  for (const char* key : {"r/b", "r/a/z", "r/a-x", "r/a.x", "r/a0", "r/aa/b", "q", "s", "r/B"}) {
    ASSERT_EQ(put(key, key), StatusCode::kOk);
  }
  EXPECT_THAT(keys("r/"), ElementsAre("r/B", "r/a-x", "r/a.x", "r/a/z", "r/a0", "r/aa/b", "r/b"));
  EXPECT_THAT(keys("r/a"), ElementsAre("r/a-x", "r/a.x", "r/a/z", "r/a0", "r/aa/b"));
  EXPECT_THAT(keys("r/a/"), ElementsAre("r/a/z"));
  EXPECT_THAT(keys("r/a/z"), ElementsAre("r/a/z"));
  EXPECT_THAT(keys("r/a/zz"), IsEmpty());
  EXPECT_THAT(keys("nothing/here"), IsEmpty());
  EXPECT_THAT(keys("q/"), IsEmpty());
  EXPECT_EQ(keys("").size(), 9u);
  EXPECT_THAT(keys("r/", "r/a/z"), ElementsAre("r/a0", "r/aa/b", "r/b"));
  EXPECT_THAT(keys("r/", "r/a/"), ElementsAre("r/a/z", "r/a0", "r/aa/b", "r/b"));
  EXPECT_THAT(keys("r/", "r/a~"), ElementsAre("r/b"));
  EXPECT_THAT(keys("r/", "a"), ElementsAre("r/B", "r/a-x", "r/a.x", "r/a/z", "r/a0", "r/aa/b", "r/b"));
  EXPECT_THAT(keys("r/", "z"), IsEmpty());
}

TEST_P(ObjectStoreTest, AListingSaysWhenAnObjectWasWritten) {
  const auto now = [] {
    return std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch());
  };
  const auto before = now();
  ASSERT_TRUE(store().put_if_absent("hub/a", as_bytes("x")).ok());
  const auto page = store().list("hub/", {}, 10);
  ASSERT_TRUE(page.ok()) << page.status().to_string();
  ASSERT_EQ(page->objects.size(), 1u);
  EXPECT_GE(page->objects[0].modified, before - std::chrono::seconds(1)) << "file systems have coarse clocks";
  EXPECT_LE(page->objects[0].modified, now());
}

TEST_P(ObjectStoreTest, PagesCoverEverythingOnce) {
  std::vector<std::string> expected;
  PhiloxStream random(7, 0);
  for (int i = 0; i < 120; ++i) {
    const std::string key = fmt::format("p/{:02}/{:03}", random.below(7), i);
    ASSERT_EQ(put(key, "x"), StatusCode::kOk);
    expected.push_back(key);
  }
  std::sort(expected.begin(), expected.end());
  for (const std::size_t limit : {std::size_t{1}, std::size_t{7}, std::size_t{120}, std::size_t{1000}}) {
    std::vector<std::string> seen;
    std::string after;
    do {
      const auto page = store().list("p/", after, limit);
      ASSERT_TRUE(page.ok());
      ASSERT_LE(page->objects.size(), limit);
      for (const ObjectInfo& info : page->objects) {
        EXPECT_EQ(info.size, 1u);
        EXPECT_TRUE(info.etag.empty());
        seen.push_back(info.key);
      }
      after = page->next;
    } while (!after.empty());
    EXPECT_EQ(seen, expected) << "limit " << limit;
  }
  EXPECT_EQ(list_all(store(), "p/")->size(), 120u);
}

TEST_P(ObjectStoreTest, RefusesKeysThatAreNotKeys) {
  const std::string long_part(256, 'x');
  std::string long_key;
  for (int i = 0; i < 200; ++i) long_key += "abc/";
  long_key += "end";
  const std::vector<std::string> bad = {
      "",         "/a",  "a/",      "a//b",   ".",     "..",   "a/..",
      "../a",     "./a", "a/./b",   "a b",    "a\\b",  "a\nb", "@store/lock",
      "\xc3\xa9", "a~",  long_part, long_key, "a%2fb", "a:b",  std::string("a\0b", 3)};
  for (const std::string& key : bad) {
    SCOPED_TRACE(key);
    EXPECT_EQ(store().get(key).status().code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(store().get_range(key, 0, 1).status().code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(store().head(key).status().code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(put(key, "x"), StatusCode::kInvalidArgument);
    EXPECT_EQ(store().put(key, as_bytes("x")).status().code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(store().put_if_match(key, as_bytes("x"), "t").status().code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(store().remove(key).code(), StatusCode::kInvalidArgument);
  }
  EXPECT_EQ(put("..a/b..c/.d/...", "x"), StatusCode::kOk);
  EXPECT_EQ(put(std::string(255, 'x') + "/" + std::string(255 - GetParam().prefix_bytes, 'y'), "x"), StatusCode::kOk);
}

TEST_P(ObjectStoreTest, RefusesBadListArguments) {
  EXPECT_EQ(store().list("a", {}, 0).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(store().list("a", {}, 1001).status().code(), StatusCode::kInvalidArgument);
  for (const char* prefix : {"/", "a//", "../", "a/../", "a b", "@"}) {
    EXPECT_EQ(store().list(prefix, {}, 10).status().code(), StatusCode::kInvalidArgument) << prefix;
  }
  EXPECT_TRUE(store().list("a/.", {}, 10).ok());
}

TEST_P(ObjectStoreTest, NoKeyContinuesAnotherOne) {
  if (!GetParam().has_folders) GTEST_SKIP() << "a bucket has no folders";
  ASSERT_EQ(put("a/b", "x"), StatusCode::kOk);
  EXPECT_EQ(put("a/b/c", "x"), StatusCode::kInvalidArgument);
  EXPECT_EQ(put("a", "x"), StatusCode::kInvalidArgument);
  EXPECT_EQ(store().put("a", as_bytes("x")).status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(keys(""), ElementsAre("a/b"));
}

TEST_P(ObjectStoreTest, OfTwelveCreatorsExactlyOneWins) {
  for (int round = 0; round < 20; ++round) {
    const std::string key = fmt::format("race/{}/object", round);
    std::atomic<int> winner{-1};
    std::atomic<int> wins{0};
    std::atomic<int> losses{0};
    {
      std::vector<std::jthread> creators;
      for (int i = 0; i < 12; ++i) {
        creators.emplace_back([&, i] {
          const auto result = store().put_if_absent(key, as_bytes(fmt::format("creator {}", i)));
          if (result.ok()) {
            winner = i;
            ++wins;
          } else if (result.status().code() == StatusCode::kAlreadyExists) {
            ++losses;
          }
        });
      }
    }
    EXPECT_EQ(wins, 1);
    EXPECT_EQ(losses, 11);
    EXPECT_EQ(text(key), fmt::format("creator {}", winner.load()));
  }
}

TEST_P(ObjectStoreTest, ConditionalWritersLoseNoIncrement) {
  ASSERT_EQ(put("counter", "0"), StatusCode::kOk);
  {
    std::vector<std::jthread> writers;
    for (int i = 0; i < 4; ++i) {
      writers.emplace_back([&] {
        for (int done = 0; done < 25;) {
          const auto object = store().get("counter");
          ASSERT_TRUE(object.ok()) << object.status().to_string();
          const int value = std::stoi(std::string(as_text(object->bytes)));
          const auto written = store().put_if_match("counter", as_bytes(std::to_string(value + 1)), object->etag);
          if (written.ok()) {
            ++done;
          } else {
            ASSERT_EQ(written.status().code(), StatusCode::kFailedPrecondition);
          }
        }
      });
    }
  }
  EXPECT_EQ(text("counter"), "100");
}

TEST_P(ObjectStoreTest, CreatorsAndRemoversOfOneFolderDoNotDisturbEachOther) {
  std::vector<std::jthread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      for (int round = 0; round < 30; ++round) {
        const std::string key = fmt::format("shared/{}/{}", round % 3, i);
        ASSERT_TRUE(store().put_if_absent(key, as_bytes("x")).ok());
        ASSERT_TRUE(store().remove(key).ok());
      }
    });
  }
  threads.clear();
  EXPECT_THAT(keys(""), IsEmpty());
}

}  // namespace
}  // namespace flotilla
