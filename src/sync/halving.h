#pragma once

#include <cstdint>

namespace flotilla {

// 2^-x in integers, the same on every machine: how likely it is that nothing happens for x half-lives.
//
// A half-life is 2^24 units of time; probabilities are parts of 2^30.
inline constexpr int kHalfLifeBits = 24;
inline constexpr std::uint64_t kHorizon = std::uint64_t{4} << kHalfLifeBits;  // the longest time that is asked for

// Falls strictly as far as the horizon: two times in [0, kHorizon] never have the same survival. survival(0) = 2^30.
std::uint32_t survival(std::uint64_t time);
// A time near the one with this survival, in [1, 2^30]; some units off, and not always as many: a place to begin to
// look.
std::uint64_t time_near(std::uint32_t survival);

}  // namespace flotilla
