#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace flotilla {

// 2^-x in integers, the same on every machine: how likely it is that nothing happens for x half-lives.
//
// A half-life is 2^24 units of time; probabilities are parts of 2^30.
inline constexpr int kHalfLifeBits = 24;
inline constexpr std::uint64_t kHorizon = std::uint64_t{4} << kHalfLifeBits;  // the longest time that is asked for
inline constexpr std::uint32_t kSurvivesHorizon = 1u << 26;

inline constexpr int kHalvingStepBits = 11;  // table entries a half-life
inline constexpr int kHalvingSteps = 1 << kHalvingStepBits;
extern const std::array<std::uint32_t, kHalvingSteps + 1> kHalvings;  // 2^30 * 2^(-i / kHalvingSteps)
extern const std::array<std::uint32_t, kHalvingSteps> kHalfLives;  // times whose survival begins with 1 and these bits

// Falls strictly as far as the horizon: two times in [0, kHorizon] never have the same survival. survival(0) = 2^30.
inline std::uint32_t survival(std::uint64_t time) {
  constexpr int kRestBits = kHalfLifeBits - kHalvingStepBits;
  const std::uint64_t octave = time >> kHalfLifeBits;
  if (octave > 30) return 0;
  const auto step = static_cast<std::size_t>(time >> kRestBits) % kHalvingSteps;
  const std::uint64_t rest = time % (1u << kRestBits);
  const std::uint64_t fall = kHalvings[step] - kHalvings[step + 1];
  // Not rounded before the octave is taken off, so that it falls within the lower ones too.
  return static_cast<std::uint32_t>(((std::uint64_t{kHalvings[step]} << kRestBits) - fall * rest) >>
                                    (kRestBits + octave));
}

// A time near the one after which `left` of `all` survives, both at least 2^kHalvingStepBits: a place to begin to look,
// less than kTimeError units off.
inline constexpr std::uint64_t kTimeError = 1 << 14;
inline std::uint64_t time_near(std::uint64_t all, std::uint64_t left) {
  const auto to_next_octave = [](std::uint64_t number) {
    const int zeros = std::countl_zero(number);
    const auto step = static_cast<std::size_t>(number << zeros >> (63 - kHalvingStepBits)) % kHalvingSteps;
    return (static_cast<std::uint64_t>(zeros) << kHalfLifeBits) + kHalfLives[step];
  };
  return to_next_octave(left) - to_next_octave(all);
}

}  // namespace flotilla
