#include "benchmark/peak_loops.h"

#if defined(__aarch64__)

#include <arm_neon.h>

namespace flotilla {
namespace {

constexpr int kChains = 16;

// The compiler may neither see that the operands never change nor drop a result.
template <typename Vector>
inline void hide(Vector& x) {
  asm volatile("" : "+w"(x));
}

// Bytes widened to 16 bits beforehand.
void dot_words(std::int64_t rounds) {
  int16x4_t a = vdup_n_s16(3), b = vdup_n_s16(-5);
  hide(a);
  hide(b);
  int32x4_t sums[kChains];
  for (int32x4_t& sum : sums) sum = vdupq_n_s32(0);
  for (std::int64_t i = 0; i < rounds; ++i) {
#pragma GCC unroll 16
    for (int k = 0; k < kChains; ++k) sums[k] = vmlal_s16(sums[k], a, b);
  }
  for (int32x4_t& sum : sums) hide(sum);
}

// Two products in 16 bits, pairs of those in 32.
void dot_bytes(std::int64_t rounds) {
  int8x8_t a = vdup_n_s8(3), b = vdup_n_s8(-5);
  hide(b);
  int32x4_t sums[kChains];
  for (int32x4_t& sum : sums) sum = vdupq_n_s32(0);
  for (std::int64_t i = 0; i < rounds; ++i) {
#pragma GCC unroll 16
    for (int k = 0; k < kChains; ++k) {
      hide(a);  // or one product would do for all
      sums[k] = vpadalq_s16(sums[k], vmlal_s8(vmull_s8(a, b), a, b));
    }
  }
  for (int32x4_t& sum : sums) hide(sum);
}

void multiply_add(std::int64_t rounds) {
  float32x4_t a = vdupq_n_f32(1.0f), b = vdupq_n_f32(0.5f);
  hide(a);
  hide(b);
  float32x4_t sums[kChains];
  for (float32x4_t& sum : sums) sum = vdupq_n_f32(0);
  for (std::int64_t i = 0; i < rounds; ++i) {
#pragma GCC unroll 16
    for (int k = 0; k < kChains; ++k) sums[k] = vfmaq_f32(sums[k], a, b);
  }
  for (float32x4_t& sum : sums) hide(sum);
}

std::uint64_t read(const std::uint8_t* from, std::int64_t bytes) {
  uint8x16_t sums[4] = {vdupq_n_u8(0), vdupq_n_u8(0), vdupq_n_u8(0), vdupq_n_u8(0)};
  for (std::int64_t i = 0; i < bytes; i += 64) {
    for (int k = 0; k < 4; ++k) sums[k] = veorq_u8(sums[k], vld1q_u8(from + i + 16 * k));
  }
  const uint64x2_t all = vreinterpretq_u64_u8(veorq_u8(veorq_u8(sums[0], sums[1]), veorq_u8(sums[2], sums[3])));
  return vgetq_lane_u64(all, 0) ^ vgetq_lane_u64(all, 1);
}

}  // namespace

PeakLoops neon_peak_loops() {
  PeakLoops loops;
  loops.int8[0] = {kChains * 8, dot_words};
  loops.int8[1] = {kChains * 32, dot_bytes};
  loops.fp32 = {kChains * 8, multiply_add};
  loops.read = read;
  return loops;
}

}  // namespace flotilla

#else

namespace flotilla {
PeakLoops neon_peak_loops() { return {}; }  // never asked for: supported_isas() lists what the machine has
}  // namespace flotilla

#endif
