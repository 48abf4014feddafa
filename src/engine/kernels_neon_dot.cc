#include "engine/kernels.h"

#if defined(__aarch64__) && defined(__ARM_FEATURE_DOTPROD)

#include <arm_neon.h>

#include "engine/exponential.h"

namespace flotilla {
namespace {

#include "engine/neon_matmul.h"

// sdot adds four products of signed bytes to each sum of 32 bits. Weights lie in fours of columns; a register of
// activations serves four of those.
struct QuadDot {
  using Activation = std::int8_t;

  template <int kRows>
  static void group(const std::int8_t* q, const std::uint8_t* a, std::int64_t stride, I16* dots) {
#pragma GCC unroll 4
    for (int k = 0; k < kActivationGroup; k += 16) {
      int8x16_t activations[kRows];
      for (int r = 0; r < kRows; ++r)
        activations[r] = vld1q_s8(reinterpret_cast<const std::int8_t*>(a + r * stride + k));
      quad<0, kRows>(q, activations, dots);
      quad<1, kRows>(q + 4 * kLanes, activations, dots);
      quad<2, kRows>(q + 8 * kLanes, activations, dots);
      quad<3, kRows>(q + 12 * kLanes, activations, dots);
      q += 16 * kLanes;
    }
  }

  template <int kQuad, int kRows>
  static inline void quad(const std::int8_t* q, const int8x16_t* activations, I16* dots) {
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      const int8x16_t weights = vld1q_s8(q + 16 * i);
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) {
        dots[r].v[i] = vdotq_laneq_s32(dots[r].v[i], weights, activations[r], kQuad);
        pin(dots[r].v[i]);
      }
    }
  }
};

}  // namespace

// Activations of two bytes take the kernels without the extension: they are for measurement.
KernelTable neon_dot_kernels(bool two_bytes) {
  if (two_bytes) return neon_kernels(true);
  KernelTable table = common_kernels();
  table.ways = 4;
  table.activation_bytes = 1;
  table.quantize = quantize<QuadDot>;
  table.matmul = matmul<QuadDot>;
  return table;
}

}  // namespace flotilla

#else

namespace flotilla {
KernelTable neon_dot_kernels(bool) { return {}; }  // never asked for: isa.cc lists what the machine has
}  // namespace flotilla

#endif
