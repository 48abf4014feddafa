#include "engine/kernels.h"

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)

#include <immintrin.h>

#include "engine/exponential.h"

namespace flotilla {
namespace {

#include "engine/avx2_vectors.h"
#include "engine/vector_kernels.h"

template <bool kTwoBytes>
bool quantize(const float* x, std::int64_t n, const QuantizedRows& out, std::int64_t row) {
  const float limit = kTwoBytes ? kTwoByteLimit : kOneByteLimit;
  auto* q = reinterpret_cast<std::int16_t*>(out.q + row * out.stride);
  for (std::int64_t g = 0; g < out.groups; ++g) {
    const std::int64_t begin = g * kActivationGroup;
    const std::int64_t count = n - begin < kActivationGroup ? n - begin : kActivationGroup;
    float inverse;
    if (!group_factors(largest_bits(x + begin, count), limit, &inverse, out.scales + row * out.scale_stride + g))
      return false;
    const __m256 factor = _mm256_set1_ps(inverse);
    for (std::int64_t i = 0; i < kActivationGroup; i += 16) {
      __m256i packed = _mm256_setzero_si256();
      if (i < count) {
        const F16 v = load(x + begin + i);
        // packs interleaves the halves of its operands; the permutation puts them in order.
        packed = _mm256_permute4x64_epi64(_mm256_packs_epi32(_mm256_cvtps_epi32(_mm256_mul_ps(v.low, factor)),
                                                             _mm256_cvtps_epi32(_mm256_mul_ps(v.high, factor))),
                                          0xd8);
      }
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(q + begin + i), packed);
    }
  }
  return true;
}

// Of a panel, this much goes through all rows before the next part: it stays in the L1 cache beside the rows of a tile.
constexpr std::int64_t kGroupsAtATime = 12;
constexpr std::int64_t kRowsAtATime = 256;
constexpr int kTileRows = 6;  // 12 sums, the weights and an activation fill the registers

// Part of a product: `groups` groups of one panel.
struct PanelPart {
  const std::int8_t* q;
  const std::uint16_t* scales;
  std::int64_t groups;
  bool first, last;  // of the panel
};

// kRows rows times a part of a panel. Activations are pairs of 16 bits, weights are widened once for all rows. Sums of
// unfinished panels wait in `waiting`, [row][16].
template <int kRows>
inline void matmul_tile(const PanelPart& part, const std::uint8_t* a, std::int64_t a_stride, const float* a_scales,
                        std::int64_t scale_stride, float* waiting, float* out, std::int64_t stride, bool accumulate) {
  const std::int8_t* q = part.q;
  const std::uint16_t* scales = part.scales;
  F16 sums[kRows];
  for (int r = 0; r < kRows; ++r) sums[r] = part.first ? set1(0.0f) : load(waiting + r * kLanes);
  for (std::int64_t g = 0; g < part.groups; ++g) {
    I16 dots[kRows];
#pragma GCC unroll 6
    for (int r = 0; r < kRows; ++r) dots[r] = zero_integers();
#pragma GCC unroll 2
    for (int k = 0; k < kActivationGroup; k += 2) {
      const __m256i low = _mm256_cvtepi8_epi16(_mm_load_si128(reinterpret_cast<const __m128i*>(q)));
      const __m256i high = _mm256_cvtepi8_epi16(_mm_load_si128(reinterpret_cast<const __m128i*>(q + 16)));
      q += 32;
#pragma GCC unroll 6
      for (int r = 0; r < kRows; ++r) {
        std::int32_t pair;
        __builtin_memcpy(&pair, a + r * a_stride + 2 * k, sizeof(pair));
        const __m256i both = _mm256_set1_epi32(pair);
        dots[r].low = _mm256_add_epi32(dots[r].low, _mm256_madd_epi16(both, low));
        dots[r].high = _mm256_add_epi32(dots[r].high, _mm256_madd_epi16(both, high));
        // Rows in turn: left alone, the compiler loads the activations of all rows first and spills a sum.
        asm volatile("" : "+x"(dots[r].low), "+x"(dots[r].high));
      }
    }
    const F16 scale = load_bf16(scales);
    scales += kLanes;
    a += 2 * kActivationGroup;
#pragma GCC unroll 6
    for (int r = 0; r < kRows; ++r) {
      sums[r] = fma(to_float(dots[r]), mul(set1(a_scales[r * scale_stride + g]), scale), sums[r]);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    float* y = out + r * stride;
    if (!part.last) {
      store(waiting + r * kLanes, sums[r]);
    } else {
      store(y, accumulate ? add(load(y), sums[r]) : sums[r]);
    }
  }
}

void matmul(const PackedMatrix& w, std::int64_t panel_begin, std::int64_t panel_end, const QuantizedRows& x,
            std::int64_t rows, float* out, std::int64_t stride, bool accumulate) {
  alignas(64) float waiting[kRowsAtATime * kLanes];
  const std::int64_t parts = (w.groups + kGroupsAtATime - 1) / kGroupsAtATime;
  const std::int64_t part_groups = (w.groups + parts - 1) / parts;
  for (std::int64_t row_begin = 0; row_begin < rows; row_begin += kRowsAtATime) {
    const std::int64_t row_count = rows - row_begin < kRowsAtATime ? rows - row_begin : kRowsAtATime;
    for (std::int64_t panel = panel_begin; panel < panel_end; ++panel) {
      float* y = out + row_begin * stride + panel * kLanes;
      for (std::int64_t begin = 0; begin < w.groups; begin += part_groups) {
        const std::int64_t end = begin + part_groups < w.groups ? begin + part_groups : w.groups;
        const std::int64_t at = panel * w.groups + begin;
        const PanelPart part{w.q + at * kActivationGroup * kLanes, w.scales + at * kLanes, end - begin, begin == 0,
                             end == w.groups};
        const std::uint8_t* a = x.q + row_begin * x.stride + begin * kActivationGroup * 2;
        const float* a_scales = x.scales + row_begin * x.scale_stride + begin;
        std::int64_t r = 0;
        const auto tile = [&]<int kRows>() {
          matmul_tile<kRows>(part, a + r * x.stride, x.stride, a_scales + r * x.scale_stride, x.scale_stride,
                             waiting + r * kLanes, y + r * stride, stride, accumulate);
          r += kRows;
        };
        while (row_count - r >= kTileRows) tile.template operator()<kTileRows>();
        switch (row_count - r) {
          case 5: tile.template operator()<5>(); break;
          case 4: tile.template operator()<4>(); break;
          case 3: tile.template operator()<3>(); break;
          case 2: tile.template operator()<2>(); break;
          case 1: tile.template operator()<1>(); break;
          default: break;
        }
      }
    }
  }
}

}  // namespace

KernelTable avx2_kernels(bool two_bytes) {
  KernelTable table = common_kernels();
  table.ways = 2;
  table.activation_bytes = 2;
  table.quantize = two_bytes ? quantize<true> : quantize<false>;
  table.matmul = matmul;
  return table;
}

}  // namespace flotilla

#else

namespace flotilla {
KernelTable avx2_kernels(bool) { return {}; }  // never asked for: isa.cc lists what the machine has
}  // namespace flotilla

#endif
