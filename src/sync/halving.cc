#include "sync/halving.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace flotilla {
namespace {

constexpr int kStepBits = 11;  // table entries a half-life
constexpr int kSteps = 1 << kStepBits;
constexpr int kRestBits = kHalfLifeBits - kStepBits;

// 2^30 * 2^(-i / kSteps).
constexpr std::array<std::uint32_t, kSteps + 1> make_table() {
  // 2^(-1 / 2048) in 2^-62: eleven square roots of one half, each rounded down.
  unsigned __int128 root = static_cast<unsigned __int128>(1) << 61;
  for (int i = 0; i < kStepBits; ++i) {
    const unsigned __int128 square = root << 62;
    unsigned __int128 guess = 0;
    for (int bit = 62; bit >= 0; --bit) {
      const unsigned __int128 next = guess | static_cast<unsigned __int128>(1) << bit;
      if (next * next <= square) guess = next;
    }
    root = guess;
  }
  std::array<std::uint32_t, kSteps + 1> table{};
  unsigned __int128 value = static_cast<unsigned __int128>(1) << 62;
  for (int i = 0; i <= kSteps; ++i) {
    table[static_cast<std::size_t>(i)] =
        static_cast<std::uint32_t>((value + (static_cast<unsigned __int128>(1) << 31)) >> 32);
    value = value * root >> 62;
  }
  table[kSteps] = 1u << 29;
  return table;
}
constexpr std::array<std::uint32_t, kSteps + 1> kTable = make_table();

}  // namespace

std::uint32_t survival(std::uint64_t time) {
  const std::uint64_t octave = time >> kHalfLifeBits;
  if (octave > 30) return 0;
  const auto step = static_cast<std::size_t>(time >> kRestBits) % kSteps;
  const std::uint64_t rest = time % (1u << kRestBits);
  const std::uint64_t fall = kTable[step] - kTable[step + 1];
  // Not rounded before the octave is taken off, so that it falls within the lower ones too.
  return static_cast<std::uint32_t>(((std::uint64_t{kTable[step]} << kRestBits) - fall * rest) >> (kRestBits + octave));
}

std::uint64_t time_near(std::uint32_t survival) {
  const double halvings = 30 - std::log2(static_cast<double>(survival));
  return static_cast<std::uint64_t>(
      std::clamp(std::ldexp(halvings, kHalfLifeBits), 0.0, static_cast<double>(kHorizon)));
}

}  // namespace flotilla
