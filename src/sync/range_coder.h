#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>

#include "base/bytes.h"

namespace flotilla {

// Range coding (Martin 1979), with carries: intervals of [0, 2^30) and bits of given probability become bytes, within
// some thousandths of the sum of their -log2. The same on every machine: integers only.
inline constexpr int kRangeBits = 30;
inline constexpr int kProbabilityBits = 16;

class RangeEncoder {
 public:
  // The interval [low, low + size) of [0, 2^30); size >= 1.
  void put(std::uint32_t low, std::uint32_t size) { narrow(low, size, kRangeBits); }
  // `one`: probability of a 1, in [1, 2^16 - 1] of 2^16.
  void put_bit(bool bit, std::uint32_t one) {
    const std::uint32_t zero = (1u << kProbabilityBits) - one;
    narrow(bit ? 0 : one, bit ? one : zero, kProbabilityBits);
  }
  // The low `bits` <= 16 bits of a value of which nothing is known.
  void put_raw(std::uint32_t value, int bits) { narrow(value, 1, bits); }

  // The fewest bytes that say it all; trailing zeros are left out.
  Bytes finish() && {
    // The number in the interval with the most zeros at its end.
    int zeros = 63;
    for (; zeros > 0; --zeros) {
      const std::uint64_t mask = (std::uint64_t{1} << zeros) - 1;
      if (((low_ + mask) & ~mask) - low_ < range_) break;
    }
    const std::uint64_t mask = (std::uint64_t{1} << zeros) - 1;
    const std::uint64_t last = (low_ + mask) & ~mask;
    if (last < low_) carry();
    for (int shift = 56; shift >= 0; shift -= 8) bytes_.push_back(static_cast<std::uint8_t>(last >> shift));
    while (!bytes_.empty() && bytes_.back() == 0) bytes_.pop_back();
    return std::move(bytes_);
  }

 private:
  void narrow(std::uint64_t low, std::uint64_t size, int bits) {
    const std::uint64_t unit = range_ >> bits;
    const std::uint64_t begin = unit * low;
    low_ += begin;
    if (low_ < begin) carry();
    range_ = unit * size;
    if (range_ >= kLeast) return;
    for (int shift = 56; shift >= 32; shift -= 8) bytes_.push_back(static_cast<std::uint8_t>(low_ >> shift));
    low_ <<= 32;
    range_ <<= 32;
  }
  void carry() {
    for (std::size_t i = bytes_.size(); ++bytes_[--i] == 0;) {
    }
  }

  static constexpr std::uint64_t kLeast = std::uint64_t{1} << 32;
  std::uint64_t low_ = 0;
  std::uint64_t range_ = ~std::uint64_t{0};
  Bytes bytes_;
};

// Reads what a RangeEncoder wrote, given the same probabilities. Any bytes are some sequence of symbols: whoever reads
// bounds their number and checks their sense. Keeps a view.
class RangeDecoder {
 public:
  explicit RangeDecoder(ByteSpan bytes) : bytes_(bytes) {
    const std::uint64_t high = next();
    code_ = high << 32 | next();
  }

  // The next symbol is the interval [low, low + size) with edge(low) <= at() < edge(low + size): to be found without a
  // division, by whoever knows the intervals. Then take(edge(low), edge(low + size)).
  std::uint64_t edge(std::uint32_t number) const { return (range_ >> kRangeBits) * number; }
  std::uint64_t at() const { return std::min(code_, edge(1u << kRangeBits) - 1); }
  void take(std::uint64_t begin, std::uint64_t end) { narrow(begin, end - begin); }

  // Not by a jump: for bits that no processor foresees.
  bool bit(std::uint32_t one) {
    const std::uint64_t unit = range_ >> kProbabilityBits;
    const std::uint64_t split = unit * one, rest = (unit << kProbabilityBits) - split;
    const bool bit = code_ < split;
    const std::uint64_t zero = std::uint64_t{bit} - 1;
    narrow(split & zero, split ^ ((split ^ rest) & zero));
    return bit;
  }
  // The same by a jump: for those that are nearly always 0.
  bool rare_bit(std::uint32_t one) {
    const std::uint64_t unit = range_ >> kProbabilityBits;
    const std::uint64_t split = unit * one;
    if (code_ < split) [[unlikely]] {
      narrow(0, split);
      return true;
    }
    narrow(split, (unit << kProbabilityBits) - split);
    return false;
  }
  std::uint32_t raw(int bits) {
    const std::uint64_t unit = range_ >> bits;
    const auto value = static_cast<std::uint32_t>(std::min<std::uint64_t>(code_ / unit, (1u << bits) - 1));
    narrow(unit * value, unit);
    return value;
  }

  // Whether all bytes were needed; a few at the end are looked at before they are.
  bool at_end() const { return position_ >= bytes_.size(); }

 private:
  void narrow(std::uint64_t begin, std::uint64_t size) {
    code_ -= begin;
    range_ = size;
    if (range_ >= kLeast) return;
    code_ = code_ << 32 | next();
    range_ <<= 32;
  }
  std::uint32_t next() {
    std::uint32_t four = 0;
    if (position_ + 4 <= bytes_.size()) {
      std::memcpy(&four, bytes_.data() + position_, 4);
    } else if (position_ < bytes_.size()) {
      std::memcpy(&four, bytes_.data() + position_, bytes_.size() - position_);
    }
    position_ += 4;
    return __builtin_bswap32(four);
  }

  static constexpr std::uint64_t kLeast = std::uint64_t{1} << 32;
  ByteSpan bytes_;
  std::size_t position_ = 0;
  std::uint64_t code_ = 0;
  std::uint64_t range_ = ~std::uint64_t{0};
};

// The probability of a 1 that follows what was seen: the mean of all bits at first (Krichevsky and Trofimov 1981), of
// about the last thousand later.
class AdaptiveBit {
 public:
  // Codes a bit and learns from it.
  void put(bool bit, RangeEncoder& out) {
    out.put_bit(bit, one());
    update(bit);
  }
  bool get(RangeDecoder& in) {
    const bool bit = in.bit(one());
    update(bit);
    return bit;
  }
  bool get_rare(RangeDecoder& in) {
    const bool bit = in.rare_bit(one());
    update(bit);
    return bit;
  }

  // In [1, 2^16 - 1] of 2^16.
  std::uint32_t one() const {
    return std::clamp(static_cast<std::uint32_t>(one_) >> (kBits - kProbabilityBits), 1u, (1u << kProbabilityBits) - 1);
  }
  void update(bool bit) {
    const std::int32_t target = std::int32_t{bit} << kBits;
    if (seen_ == kMemory) [[likely]] {
      one_ += (target - one_) / (kMemory + 2);  // by a constant
    } else {
      one_ += (target - one_) / (seen_++ + 2);
    }
  }

 private:
  static constexpr int kBits = 28;
  static constexpr std::int32_t kMemory = 1022;
  std::int32_t one_ = 1 << (kBits - 1);
  std::int32_t seen_ = 0;
};

}  // namespace flotilla
