#include "benchmark/peak_loops.h"

#if defined(__aarch64__) && defined(__ARM_FEATURE_DOTPROD)

#include <arm_neon.h>

namespace flotilla {
namespace {

constexpr int kChains = 16;

void dot_bytes(std::int64_t rounds) {
  int8x16_t a = vdupq_n_s8(3), b = vdupq_n_s8(-5);
  // The compiler may neither see that the operands never change nor drop a result.
  asm volatile("" : "+w"(a), "+w"(b));
  int32x4_t sums[kChains];
  for (int32x4_t& sum : sums) sum = vdupq_n_s32(0);
  for (std::int64_t i = 0; i < rounds; ++i) {
#pragma GCC unroll 16
    for (int k = 0; k < kChains; ++k) sums[k] = vdotq_s32(sums[k], a, b);
  }
  for (int32x4_t& sum : sums) asm volatile("" : "+w"(sum));
}

}  // namespace

PeakLoops neon_dot_peak_loops() {
  PeakLoops loops = neon_peak_loops();
  loops.int8[0] = {kChains * 32, dot_bytes};
  loops.int8[1] = {};
  return loops;
}

}  // namespace flotilla

#else

namespace flotilla {
PeakLoops neon_dot_peak_loops() { return {}; }  // never asked for: supported_isas() lists what the machine has
}  // namespace flotilla

#endif
