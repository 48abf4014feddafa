// The NEON kernels but for the innermost loop of the product. The including file opens an anonymous namespace inside
// flotilla; everything here lands there. No #pragma once: part of one translation unit a file.
//
// A Dot says how a group is multiplied:
//   Activation: the type of a rounded activation;
//   group<kRows>(q, a, stride, dots): adds the products of one group of a panel with kRows rows, `stride` bytes apart.

#include "engine/neon_vectors.h"
#include "engine/vector_kernels.h"

inline void store_rounded(std::int8_t* p, I16 x) {
  const int16x8_t low = vcombine_s16(vmovn_s32(x.v[0]), vmovn_s32(x.v[1]));
  const int16x8_t high = vcombine_s16(vmovn_s32(x.v[2]), vmovn_s32(x.v[3]));
  vst1q_s8(p, vcombine_s8(vmovn_s16(low), vmovn_s16(high)));
}
inline void store_rounded(std::int16_t* p, I16 x) {
  vst1q_s16(p, vcombine_s16(vmovn_s32(x.v[0]), vmovn_s32(x.v[1])));
  vst1q_s16(p + 8, vcombine_s16(vmovn_s32(x.v[2]), vmovn_s32(x.v[3])));
}

// Keeps a sum in its register: left alone, the compiler moves the sums about and spills some in the inner loop.
inline void pin(int32x4_t& sum) { asm volatile("" : "+w"(sum)); }

template <typename Dot>
bool quantize(const float* x, std::int64_t n, const QuantizedRows& out, std::int64_t row) {
  using Activation = typename Dot::Activation;
  auto* q = reinterpret_cast<Activation*>(out.q + row * out.stride);
  for (std::int64_t g = 0; g < out.groups; ++g) {
    const std::int64_t begin = g * kActivationGroup;
    const std::int64_t count = n - begin < kActivationGroup ? n - begin : kActivationGroup;
    float inverse;
    if (!group_factors(largest_bits(x + begin, count), sizeof(Activation) == 1 ? kOneByteLimit : kTwoByteLimit,
                       &inverse, out.scales + row * out.scale_stride + g)) {
      return false;
    }
    for (std::int64_t i = 0; i < kActivationGroup; i += 16) {
      store_rounded(q + begin + i, i < count ? round(mul(load(x + begin + i), set1(inverse))) : zero_integers());
    }
  }
  return true;
}

constexpr int kTileRows = 4;  // 16 registers of sums; the weights and the activations have the others

template <typename Dot, int kRows>
void matmul_tile(const PackedMatrix& w, std::int64_t panel, const QuantizedRows& x, std::int64_t row, float* out,
                 std::int64_t stride, bool accumulate) {
  const std::int8_t* q = w.q + panel * w.groups * kActivationGroup * kLanes;
  const std::uint16_t* scales = w.scales + panel * w.groups * kLanes;
  const std::uint8_t* a = x.q + row * x.stride;
  const float* a_scales = x.scales + row * x.scale_stride;
  alignas(64) float sums[kRows][kLanes] = {};
  for (std::int64_t g = 0; g < w.groups; ++g) {
    I16 dots[kRows];
    for (int r = 0; r < kRows; ++r) dots[r] = zero_integers();
    Dot::template group<kRows>(q, a, x.stride, dots);
    const F16 scale = load_bf16(scales);
    for (int r = 0; r < kRows; ++r) {
      const F16 both = mul(set1(a_scales[r * x.scale_stride + g]), scale);
      store(sums[r], fma(to_float(dots[r]), both, load(sums[r])));
    }
    q += kActivationGroup * kLanes;
    a += kActivationGroup * sizeof(typename Dot::Activation);
    scales += kLanes;
  }
  for (int r = 0; r < kRows; ++r) {
    float* y = out + (row + r) * stride + panel * kLanes;
    store(y, accumulate ? add(load(y), load(sums[r])) : load(sums[r]));
  }
}

template <typename Dot>
void matmul(const PackedMatrix& w, std::int64_t panel_begin, std::int64_t panel_end, const QuantizedRows& x,
            std::int64_t rows, float* out, std::int64_t stride, bool accumulate) {
  for (std::int64_t panel = panel_begin; panel < panel_end; ++panel) {
    std::int64_t r = 0;
    for (; r + kTileRows <= rows; r += kTileRows) matmul_tile<Dot, kTileRows>(w, panel, x, r, out, stride, accumulate);
    switch (rows - r) {
      case 3: matmul_tile<Dot, 3>(w, panel, x, r, out, stride, accumulate); break;
      case 2: matmul_tile<Dot, 2>(w, panel, x, r, out, stride, accumulate); break;
      case 1: matmul_tile<Dot, 1>(w, panel, x, r, out, stride, accumulate); break;
      default: break;
    }
  }
}
