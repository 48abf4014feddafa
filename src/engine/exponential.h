#pragma once

// exp in fp32 by the same operations on every instruction set (docs/design/arithmetic.md). Constants only: the vector
// files include this. The polynomial is the weighted minimax fit of degree 6 over |r| <= ln(2)/2, relative error 3e-9
// before rounding.
namespace flotilla::exp_constants {

inline constexpr float kHigh = 88.0f;  // larger arguments count as this one
inline constexpr float kLow = -87.0f;  // smaller arguments give 0, so results are never subnormal
inline constexpr float kLog2E = 0x1.715476p+0f;
inline constexpr float kRound = 0x1.8p+23f;      // x + kRound holds the integer nearest to x in its low bits
inline constexpr float kLn2High = 0x1.62e4p-1f;  // 15 bits: n * kLn2High is exact
inline constexpr float kLn2Low = 0x1.7f7d1cp-20f;
// e^r = 1 + r * (1 + r * (c2 + r * (c3 + r * (c4 + r * (c5 + r * c6)))))
inline constexpr float kC2 = 0x1.fffffcp-2f;
inline constexpr float kC3 = 0x1.55549p-3f;
inline constexpr float kC4 = 0x1.5558f4p-5f;
inline constexpr float kC5 = 0x1.123a6cp-7f;
inline constexpr float kC6 = 0x1.6a2352p-10f;

}  // namespace flotilla::exp_constants
