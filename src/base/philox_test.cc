#include "base/philox.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <vector>

#include <gtest/gtest.h>

namespace flotilla {
namespace {

using Words = std::array<std::uint32_t, 4>;

// The known answers for "philox4x32 10" in Random123's tests/kat_vectors.
TEST(Philox, agrees_with_the_known_answers_of_random123) {
  EXPECT_EQ(philox4x32({0, 0, 0, 0}, {0, 0}), (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox4x32({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}),
            (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(PhiloxStream, is_the_blocks_of_its_key_in_order) {
  PhiloxStream stream(0x1111111122222222, 0x3333333344444444);
  for (std::uint32_t block = 0; block < 3; ++block) {
    const Words words = philox4x32({block, 0, 0x44444444, 0x33333333}, {0x22222222, 0x11111111});
    for (const std::uint32_t word : words) EXPECT_EQ(stream.next_u32(), word);
  }
  PhiloxStream wide(0, 0);
  EXPECT_EQ(wide.next_u64(), 0xe169c58d6627e8d5u);
}

TEST(PhiloxStream, differs_by_seed_and_by_stream_and_a_copy_replays) {
  std::set<std::uint64_t> first;
  for (std::uint64_t seed = 0; seed < 4; ++seed) {
    for (std::uint64_t stream = 0; stream < 4; ++stream) first.insert(PhiloxStream(seed, stream).next_u64());
  }
  EXPECT_EQ(first.size(), 16u);
  PhiloxStream a(1, 2);
  a.next_u32();
  PhiloxStream b = a;
  EXPECT_EQ(a.next_u64(), b.next_u64());
}

TEST(PhiloxStream, below_is_uniform_and_within_its_bound) {
  PhiloxStream random(1, 2);
  std::vector<int> counts(6);
  for (int i = 0; i < 60000; ++i) ++counts.at(random.below(6));
  // Five degrees of freedom: chi-square stays below 20.5 with probability 0.999.
  double chi_square = 0;
  for (const int count : counts) chi_square += (count - 10000.0) * (count - 10000.0) / 10000.0;
  EXPECT_LT(chi_square, 20.5);
  EXPECT_EQ(random.below(1), 0u);
  EXPECT_LT(random.below(~std::uint64_t{0}), ~std::uint64_t{0});
}

TEST(PhiloxStream, uniform_lies_in_the_unit_interval) {
  PhiloxStream random(1, 2);
  double sum = 0;
  for (int i = 0; i < 10000; ++i) {
    const double value = random.uniform();
    EXPECT_GE(value, 0);
    EXPECT_LT(value, 1);
    sum += value;
  }
  EXPECT_NEAR(sum / 10000, 0.5, 0.01);  // standard error 0.0029
}

TEST(Shuffle, is_a_permutation_fixed_by_the_seed) {
  std::vector<int> values(100), again(100);
  std::iota(values.begin(), values.end(), 0);
  again = values;
  PhiloxStream random(7, 0), same(7, 0);
  shuffle(std::span(values), random);
  shuffle(std::span(again), same);
  EXPECT_EQ(values, again);
  EXPECT_FALSE(std::is_sorted(values.begin(), values.end()));
  std::sort(values.begin(), values.end());
  for (int i = 0; i < 100; ++i) EXPECT_EQ(values[static_cast<std::size_t>(i)], i);
}

}  // namespace
}  // namespace flotilla
