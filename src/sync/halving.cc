#include "sync/halving.h"

namespace flotilla {
namespace {

constexpr std::array<std::uint32_t, kHalvingSteps + 1> make_halvings() {
  // 2^(-1 / 2048) in 2^-62: eleven square roots of one half, each rounded down.
  unsigned __int128 root = static_cast<unsigned __int128>(1) << 61;
  for (int i = 0; i < kHalvingStepBits; ++i) {
    const unsigned __int128 square = root << 62;
    unsigned __int128 guess = 0;
    for (int bit = 62; bit >= 0; --bit) {
      const unsigned __int128 next = guess | static_cast<unsigned __int128>(1) << bit;
      if (next * next <= square) guess = next;
    }
    root = guess;
  }
  std::array<std::uint32_t, kHalvingSteps + 1> table{};
  unsigned __int128 value = static_cast<unsigned __int128>(1) << 62;
  for (int i = 0; i <= kHalvingSteps; ++i) {
    table[static_cast<std::size_t>(i)] =
        static_cast<std::uint32_t>((value + (static_cast<unsigned __int128>(1) << 31)) >> 32);
    value = value * root >> 62;
  }
  table[kHalvingSteps] = 1u << 29;
  return table;
}

constexpr std::array<std::uint32_t, kHalvingSteps> make_half_lives() {
  std::array<std::uint32_t, kHalvingSteps> table{};
  for (std::uint64_t i = 0; i < kHalvingSteps; ++i) {
    // log2 of the middle of what begins so, in [1, 2), bit by bit: the square is 2 or more when the next bit is 1.
    std::uint64_t number = (2 * (kHalvingSteps + i) + 1) << (30 - kHalvingStepBits), log = 0;
    for (int bit = 0; bit < kHalfLifeBits; ++bit) {
      number = number * number >> 31;
      log = log << 1 | number >> 32;
      number >>= number >> 32;
    }
    table[i] = static_cast<std::uint32_t>((1u << kHalfLifeBits) - log);
  }
  return table;
}

}  // namespace

constexpr std::array<std::uint32_t, kHalvingSteps + 1> kHalvings = make_halvings();
constexpr std::array<std::uint32_t, kHalvingSteps> kHalfLives = make_half_lives();

}  // namespace flotilla
