#include "sync/change_coder.h"

#include <cmath>

#include <gtest/gtest.h>

#include "base/hashing.h"
#include "base/philox.h"
#include "model/grid.h"

namespace flotilla {
namespace {

// Rows of a tensor, where some past changes lie, and what changes now.
struct Example {
  std::int64_t rows = 0, cols = 0;
  std::vector<std::uint16_t> scales;
  ChangeHistory past;
  std::vector<Change> changes;

  ChangeRegion region() const {
    return {.integers = static_cast<std::uint32_t>(rows * cols), .cols = cols, .scales = scales};
  }
};

// Scales of four octaves; `chance` of a change, `remembered` of a past one; steps up to `longest`.
Example random_example(std::uint64_t seed, std::int64_t rows, std::int64_t cols, double chance, double remembered,
                       std::uint32_t longest = 1) {
  PhiloxStream random(seed, 1);
  Example example{.rows = rows, .cols = cols, .scales = {}, .past = {}, .changes = {}};
  for (std::int64_t i = 0; i < rows * groups_of(cols); ++i) {
    example.scales.push_back(float_to_bf16(static_cast<float>(0.001 * std::exp2(4 * random.uniform()))));
  }
  for (std::uint32_t at = 0; at < example.region().integers; ++at) {
    if (random.uniform() < remembered) {
      example.past.push_back(
          {at, static_cast<std::uint32_t>(1 + random.below(kHistoryVersions)), random.below(2) == 1});
    }
    if (random.uniform() >= chance) continue;
    const auto length = static_cast<std::int32_t>(1 + random.below(longest));
    example.changes.push_back({at, random.below(2) == 1 ? length : -length});
  }
  return example;
}

Bytes encode(const Example& example) {
  ChangeModel model;
  RangeEncoder out;
  encode_changes(example.region(), example.past, example.changes, model, out);
  return std::move(out).finish();
}

// What comes back; the bytes must be used up.
std::vector<Change> decode(const Example& example, const Bytes& bytes) {
  ChangeModel model;
  RangeDecoder in(bytes);
  std::vector<Change> changes;
  EXPECT_TRUE(decode_changes(example.region(), example.past, model, in, changes).ok());
  EXPECT_TRUE(in.at_end());
  return changes;
}

TEST(ChangeCoder, GivesBackWhatItTookAtEveryDensityAndWidth) {
  std::uint64_t seed = 0;
  for (const double chance : {0.0, 0.0001, 0.003, 0.05, 0.3, 0.9, 1.0}) {
    for (const double remembered : {0.0, 0.02, 0.6, 1.0}) {
      for (const std::int64_t cols : {16, 64, 100, 576}) {
        ++seed;
        const Example example = random_example(seed, 40, cols, chance, remembered, seed % 2 == 0 ? 1 : 254);
        EXPECT_EQ(decode(example, encode(example)), example.changes) << chance << ' ' << remembered << ' ' << cols;
      }
    }
  }
}

TEST(ChangeCoder, FirstAndLastIntegersAndLoneOnesSurvive) {
  Example example = random_example(1, 500, 576, 0, 0.01);
  const std::uint32_t end = example.region().integers;
  for (const std::vector<std::uint32_t>& at :
       std::vector<std::vector<std::uint32_t>>{{0}, {end - 1}, {0, end - 1}, {0, 1}, {63, 64}, {100'000}}) {
    example.changes.clear();
    for (const std::uint32_t position : at) example.changes.push_back({position, -1});
    EXPECT_EQ(decode(example, encode(example)), example.changes);
  }
}

TEST(ChangeCoder, ChangesAtRandomCostAtMostThreePercentMoreThanTheirInformation) {
  for (const double chance : {0.0005, 0.001, 0.005, 0.01, 0.02, 0.1}) {
    Example example = random_example(5, 4000, 576, chance, 0.01);
    std::ranges::fill(example.scales, float_to_bf16(0.01f));
    const auto integers = static_cast<double>(example.rows * example.cols);
    const auto changes = static_cast<double>(example.changes.size());
    const double p = changes / integers;
    const double bits = -integers * (p * std::log2(p) + (1 - p) * std::log2(1 - p)) + changes;
    EXPECT_LT(static_cast<double>(encode(example).size() * 8), 1.03 * bits) << chance;
  }
}

TEST(ChangeCoder, WhatChangesBackIsCheap) {
  // A tenth of the past changes goes back: each says where and which way.
  Example example = random_example(6, 1000, 576, 0, 0.02);
  PhiloxStream random(7, 1);
  for (const PastChange& past : example.past) {
    if (random.uniform() < 0.1) example.changes.push_back({past.position, past.up ? -1 : 1});
  }
  const auto bits = static_cast<double>(encode(example).size() * 8);
  EXPECT_LT(bits / static_cast<double>(example.changes.size()), 5.2);  // without memory: 10 and more
}

TEST(ChangeCoder, ManyRegionsShareOneStream) {
  ChangeModel model;
  RangeEncoder out;
  std::vector<Example> examples;
  for (std::uint64_t seed = 10; seed < 20; ++seed) {
    examples.push_back(random_example(seed, 7, 80, 0.03, 0.03, 3));
    encode_changes(examples.back().region(), examples.back().past, examples.back().changes, model, out);
  }
  const Bytes bytes = std::move(out).finish();
  ChangeModel reading;
  RangeDecoder in(bytes);
  for (const Example& example : examples) {
    std::vector<Change> changes;
    ASSERT_TRUE(decode_changes(example.region(), example.past, reading, in, changes).ok());
    EXPECT_EQ(changes, example.changes);
  }
  EXPECT_TRUE(in.at_end());
}

TEST(ChangeCoder, AnyBytesEndInChangesOfTheRegionOrAnError) {
  const Example example = random_example(8, 20, 100, 0.02, 0.1);
  PhiloxStream random(9, 1);
  for (int round = 0; round < 2000; ++round) {
    Bytes bytes = encode(example);
    if (round % 2 == 0) {
      bytes.resize(random.below(200));
      for (std::uint8_t& byte : bytes) byte = static_cast<std::uint8_t>(random.next_u32());
    } else {
      bytes[random.below(bytes.size())] ^= static_cast<std::uint8_t>(1 + random.below(255));
    }
    ChangeModel model;
    RangeDecoder in(bytes);
    std::vector<Change> changes;
    if (!decode_changes(example.region(), example.past, model, in, changes).ok()) continue;
    std::int64_t previous = -1;
    for (const Change& change : changes) {
      ASSERT_GT(change.position, previous);
      ASSERT_LT(change.position, example.region().integers);
      ASSERT_NE(change.step, 0);
      previous = change.position;
    }
  }
}

TEST(ChangeHistory, RemembersTheLastChangeOfEachIntegerAndItsAge) {
  ChangeHistory history = advance({}, std::vector<Change>{{5, 1}, {9, -3}}, 1000);
  EXPECT_EQ(history, (ChangeHistory{{5, 1, true}, {9, 1, false}}));
  history = advance(history, std::vector<Change>{{2, -1}, {9, 1}}, 1000);
  EXPECT_EQ(history, (ChangeHistory{{2, 1, false}, {5, 2, true}, {9, 1, true}}));
  for (int age = 3; age <= kHistoryVersions; ++age) history = advance(history, {}, 1000);
  EXPECT_EQ(history.size(), 3u);
  history = advance(history, {}, 1000);
  EXPECT_EQ(history, (ChangeHistory{{2, kHistoryVersions, false}, {9, kHistoryVersions, true}}));
  EXPECT_TRUE(advance(history, {}, 1000).empty());
}

TEST(ChangeHistory, ForgetsWholeVersionsWhereMoreThanOneIn32IsRemembered) {
  const auto every = [](std::uint32_t first) {
    std::vector<Change> changes;
    for (std::uint32_t at = first; at < 6400; at += 64) changes.push_back({at, 1});
    return changes;  // one in 64
  };
  ChangeHistory history;
  for (std::uint32_t version = 0; version < 6; ++version) history = advance(history, every(version), 6400);
  ASSERT_EQ(history.size(), 200u);
  for (const PastChange& past : history) EXPECT_LE(past.age, 2u);
  std::vector<Change> many;
  for (std::uint32_t at = 0; at < 201; ++at) many.push_back({at, 1});
  EXPECT_TRUE(advance(history, many, 6400).empty());
}

TEST(ChangeHistory, TakesNoMoreMemoryThanItMayRemember) {
  std::vector<Change> many;
  for (std::uint32_t at = 0; at < 3000; ++at) many.push_back({2 * at, 1});
  ChangeHistory history = advance({}, std::vector<Change>{{7, 1}}, 6400);
  EXPECT_LE(advance(history, many, 6400).capacity(), 200u);
  for (std::uint32_t version = 0; version < 20; ++version) {
    history = advance(history, std::span(many).subspan(100 * version, 90), 6400);
    EXPECT_LE(history.capacity(), 200u);
  }
}

TEST(ChangeCoder, TheBytesAreTheSameOnEveryMachine) {
  Bytes all;
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    Example example = random_example(seed, 60, 576, 0.0001 * static_cast<double>(seed * seed), 0.02, 3);
    for (std::size_t i = 0; i < example.scales.size(); ++i)
      example.scales[i] = static_cast<std::uint16_t>(i * 37 % 512 + 0x3a80);
    const Bytes bytes = encode(example);
    all.insert(all.end(), bytes.begin(), bytes.end());
  }
  EXPECT_EQ(sha256(all).to_hex(), "4183ccad759ae715d6d61eae8b7db464279c8111fb548077d7e138e126adb944");
}

}  // namespace
}  // namespace flotilla
