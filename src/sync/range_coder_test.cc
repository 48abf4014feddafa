#include "sync/range_coder.h"

#include <cmath>

#include <gtest/gtest.h>

#include "base/philox.h"

namespace flotilla {
namespace {

// One symbol of a random sequence: an interval, a bit or raw bits.
struct Symbol {
  int kind = 0;
  std::uint32_t low = 0, size = 0;  // of an interval
  bool bit = false;
  std::uint32_t one = 0;    // of a bit
  std::uint32_t value = 0;  // of raw bits
  int bits = 0;

  double information() const {
    if (kind == 0) return kRangeBits - std::log2(size);
    if (kind == 1) return kProbabilityBits - std::log2(bit ? one : (1u << kProbabilityBits) - one);
    return bits;
  }
};

Symbol random_symbol(PhiloxStream& random) {
  Symbol symbol{.kind = static_cast<int>(random.below(3))};
  // Sizes of all magnitudes, the least and the greatest too.
  symbol.size = std::max<std::uint32_t>(1, (1u << kRangeBits) >> random.below(kRangeBits + 1));
  symbol.low = static_cast<std::uint32_t>(random.below((1u << kRangeBits) - symbol.size + 1));
  symbol.one = 1 + static_cast<std::uint32_t>(random.below((1u << kProbabilityBits) - 1));
  symbol.bit = random.below(1u << kProbabilityBits) < symbol.one;
  symbol.bits = 1 + static_cast<int>(random.below(16));
  symbol.value = static_cast<std::uint32_t>(random.below(1u << symbol.bits));
  return symbol;
}

Bytes encode(const std::vector<Symbol>& symbols) {
  RangeEncoder out;
  for (const Symbol& symbol : symbols) {
    if (symbol.kind == 0) out.put(symbol.low, symbol.size);
    if (symbol.kind == 1) out.put_bit(symbol.bit, symbol.one);
    if (symbol.kind == 2) out.put_raw(symbol.value, symbol.bits);
  }
  return std::move(out).finish();
}

TEST(RangeCoder, ReadsWhatItWroteAndNothingIsLeft) {
  PhiloxStream random(1, 1);
  for (int round = 0; round < 500; ++round) {
    std::vector<Symbol> symbols(random.below(200));
    for (Symbol& symbol : symbols) symbol = random_symbol(random);
    const Bytes bytes = encode(symbols);
    RangeDecoder in(bytes);
    for (const Symbol& symbol : symbols) {
      if (symbol.kind == 0) {
        const std::uint64_t begin = in.edge(symbol.low), end = in.edge(symbol.low + symbol.size);
        ASSERT_GE(in.at(), begin);
        ASSERT_LT(in.at(), end);
        in.take(begin, end);
      }
      if (symbol.kind == 1) {
        ASSERT_EQ(symbol.one % 2 == 0 ? in.bit(symbol.one) : in.rare_bit(symbol.one), symbol.bit);
      }
      if (symbol.kind == 2) {
        ASSERT_EQ(in.raw(symbol.bits), symbol.value);
      }
    }
    EXPECT_TRUE(in.at_end());
  }
}

TEST(RangeCoder, TakesHardlyMoreThanTheInformation) {
  PhiloxStream random(2, 1);
  std::vector<Symbol> symbols(100'000);
  double bits = 0;
  for (Symbol& symbol : symbols) {
    symbol = random_symbol(random);
    bits += symbol.information();
  }
  const auto written = static_cast<double>(encode(symbols).size() * 8);
  EXPECT_GT(written, bits - 64);
  EXPECT_LT(written, 1.002 * bits + 64);
}

TEST(RangeCoder, CarriesPassThroughRowsOfOnes) {
  // The last interval of each symbol: the low end creeps up to the next power of two, until the first ones go over it.
  for (int last = 0; last < 2; ++last) {
    std::vector<Symbol> symbols(40, {.kind = 0, .low = (1u << kRangeBits) - 3, .size = 3});
    symbols.push_back({.kind = 1, .bit = last == 1, .one = 1});
    symbols.push_back({.kind = 2, .value = 0xffff, .bits = 16});
    const Bytes bytes = encode(symbols);
    RangeDecoder in(bytes);
    for (int i = 0; i < 40; ++i) {
      ASSERT_GE(in.at(), in.edge((1u << kRangeBits) - 3));
      in.take(in.edge((1u << kRangeBits) - 3), in.edge(1u << kRangeBits));
    }
    EXPECT_EQ(in.bit(1), last == 1);
    EXPECT_EQ(in.raw(16), 0xffffu);
  }
}

TEST(RangeCoder, NothingIsNoBytes) {
  EXPECT_TRUE(RangeEncoder().finish().empty());
  EXPECT_TRUE(RangeDecoder({}).at_end());
}

TEST(RangeCoder, AnyBytesAreSomeSymbolsInRange) {
  PhiloxStream random(3, 1);
  Bytes noise(64);
  for (std::uint8_t& byte : noise) byte = static_cast<std::uint8_t>(random.next_u32());
  for (const Bytes& bytes : {noise, Bytes(64, 0xff), Bytes(64, 0), Bytes()}) {
    RangeDecoder in(bytes);
    for (int i = 0; i < 1000; ++i) {
      const std::uint64_t number = in.at() / in.edge(1);
      ASSERT_LT(number, 1u << kRangeBits);
      const auto low = static_cast<std::uint32_t>(number);
      in.take(in.edge(low), in.edge(low + 1));
      in.bit(1 + static_cast<std::uint32_t>(random.below(65535)));
      ASSERT_LT(in.raw(5), 32u);
    }
  }
}

TEST(AdaptiveBit, LearnsTheProbabilityAndStaysInRange) {
  PhiloxStream random(4, 1);
  AdaptiveBit bit;
  for (int i = 0; i < 20'000; ++i) bit.update(random.uniform() < 0.03);
  EXPECT_NEAR(bit.one() / 65536.0, 0.03, 0.02);
  for (int i = 0; i < 100'000; ++i) bit.update(false);
  EXPECT_EQ(bit.one(), 1u);
  for (int i = 0; i < 100'000; ++i) bit.update(true);
  EXPECT_GE(bit.one(), 65500u);
  EXPECT_LE(bit.one(), 65535u);
}

}  // namespace
}  // namespace flotilla
