#include "engine/kernels.h"

#if defined(__aarch64__)

#include <arm_neon.h>

#include "engine/exponential.h"

namespace flotilla {
namespace {

#include "engine/neon_matmul.h"

// Any ARMv8-A processor. Weights lie in pairs of columns. Two products of bytes, 127 * 127 at most, fit 16 bits; pairs
// of those sums go to 32.
struct ByteDot {
  using Activation = std::int8_t;

  template <int kRows>
  static void group(const std::int8_t* q, const std::uint8_t* a, std::int64_t stride, I16* dots) {
#pragma GCC unroll 16
    for (int k = 0; k < kActivationGroup; k += 4) {
      const int8x16_t first_low = vld1q_s8(q), first_high = vld1q_s8(q + 16);
      const int8x16_t second_low = vld1q_s8(q + 32), second_high = vld1q_s8(q + 48);
      q += 4 * kLanes;
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) {
        const auto* pairs = reinterpret_cast<const std::int16_t*>(a + r * stride + k);
        const int8x16_t first = vreinterpretq_s8_s16(vld1q_dup_s16(pairs));
        const int8x16_t second = vreinterpretq_s8_s16(vld1q_dup_s16(pairs + 1));
        int32x4_t* dot = dots[r].v;
        const auto low = [&](int8x16_t w0, int8x16_t w1) {
          return vmlal_s8(vmull_s8(vget_low_s8(w0), vget_low_s8(first)), vget_low_s8(w1), vget_low_s8(second));
        };
        const auto high = [&](int8x16_t w0, int8x16_t w1) {
          return vmlal_high_s8(vmull_high_s8(w0, first), w1, second);
        };
        dot[0] = vpadalq_s16(dot[0], low(first_low, second_low));
        pin(dot[0]);
        dot[1] = vpadalq_s16(dot[1], high(first_low, second_low));
        pin(dot[1]);
        dot[2] = vpadalq_s16(dot[2], low(first_high, second_high));
        pin(dot[2]);
        dot[3] = vpadalq_s16(dot[3], high(first_high, second_high));
        pin(dot[3]);
      }
    }
  }
};

// Activations of two bytes: products of 16 bits, each added in 32.
struct WordDot {
  using Activation = std::int16_t;

  template <int kRows>
  static void group(const std::int8_t* q, const std::uint8_t* a, std::int64_t stride, I16* dots) {
    for (int k = 0; k < kActivationGroup; k += 2) {
      const int8x16x2_t columns = vld2q_s8(q);
      q += 2 * kLanes;
      for (int column = 0; column < 2; ++column) {
        const int16x8_t low = vmovl_s8(vget_low_s8(columns.val[column]));
        const int16x8_t high = vmovl_high_s8(columns.val[column]);
#pragma GCC unroll 4
        for (int r = 0; r < kRows; ++r) {
          const std::int16_t activation = reinterpret_cast<const Activation*>(a + r * stride)[k + column];
          int32x4_t* dot = dots[r].v;
          dot[0] = vmlal_n_s16(dot[0], vget_low_s16(low), activation);
          dot[1] = vmlal_high_n_s16(dot[1], low, activation);
          dot[2] = vmlal_n_s16(dot[2], vget_low_s16(high), activation);
          dot[3] = vmlal_high_n_s16(dot[3], high, activation);
        }
      }
    }
  }
};

}  // namespace

KernelTable neon_kernels(bool two_bytes) {
  KernelTable table = common_kernels();
  table.ways = 2;
  table.activation_bytes = two_bytes ? 2 : 1;
  table.quantize = two_bytes ? quantize<WordDot> : quantize<ByteDot>;
  table.matmul = two_bytes ? matmul<WordDot> : matmul<ByteDot>;
  return table;
}

}  // namespace flotilla

#else

namespace flotilla {
KernelTable neon_kernels(bool) { return {}; }  // never asked for: isa.cc lists what the machine has
}  // namespace flotilla

#endif
