#include "engine/kernels.h"

#if defined(__AVXVNNI__) || defined(FLOTILLA_EMULATED)

#include <immintrin.h>

#include "engine/exponential.h"

namespace flotilla {
namespace {

#include "engine/avx2_vectors.h"
#include "engine/vector_kernels.h"
#include "engine/weight_prefetch.h"

// vpdpbusd multiplies unsigned by signed bytes: an activation is stored as q + 128, and a dot product starts at
// -128 * sum(w) to take that back.
bool quantize(const float* x, std::int64_t n, const QuantizedRows& out, std::int64_t row) {
  const __m128i offset = _mm_set1_epi8(static_cast<char>(-128));
  std::uint8_t* q = out.q + row * out.stride;
  for (std::int64_t g = 0; g < out.groups; ++g) {
    const std::int64_t begin = g * kActivationGroup;
    const std::int64_t count = n - begin < kActivationGroup ? n - begin : kActivationGroup;
    float inverse;
    if (!group_factors(largest_bits(x + begin, count), kOneByteLimit, &inverse,
                       out.scales + row * out.scale_stride + g)) {
      return false;
    }
    for (std::int64_t i = 0; i < kActivationGroup; i += 16) {
      __m128i packed = _mm_setzero_si128();
      if (i < count) {
        const F16 v = mul(load(x + begin + i), set1(inverse));
        // packs interleaves the halves of its operands; the permutation puts them in order.
        const __m256i words =
            _mm256_permute4x64_epi64(_mm256_packs_epi32(_mm256_cvtps_epi32(v.low), _mm256_cvtps_epi32(v.high)), 0xd8);
        packed = _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
      }
      _mm_storeu_si128(reinterpret_cast<__m128i*>(q + begin + i), _mm_xor_si128(packed, offset));
    }
  }
  return true;
}

// What a dot product starts at, from the sums of eight outputs' weights.
inline __m256i start_of(const std::int16_t* sums) {
  const __m256i sum = _mm256_cvtepi16_epi32(_mm_load_si128(reinterpret_cast<const __m128i*>(sums)));
  return _mm256_sub_epi32(_mm256_setzero_si256(), _mm256_slli_epi32(sum, 7));
}

constexpr int kTileRows = 6;  // 12 sums, the weights and an activation fill the registers

// kRows rows times one panel.
template <int kRows>
inline void matmul_tile(const PackedMatrix& w, std::int64_t panel, const QuantizedRows& x, std::int64_t row, float* out,
                        std::int64_t stride, bool accumulate, Prefetch* prefetch) {
  const std::int8_t* q = w.q + panel * w.groups * kActivationGroup * kLanes;
  const std::uint16_t* scales = w.scales + panel * w.groups * kLanes;
  const std::int16_t* weight_sums = w.sums + panel * w.groups * kLanes;
  const std::uint8_t* a = x.q + row * x.stride;
  const float* a_scales = x.scales + row * x.scale_stride;
  alignas(64) float sums[kRows][kLanes] = {};
  for (std::int64_t g = 0; g < w.groups; ++g) {
    prefetch->one_group();
    const I16 start = {start_of(weight_sums), start_of(weight_sums + 8)};
    weight_sums += kLanes;
    I16 dots[kRows];
#pragma GCC unroll 6
    for (int r = 0; r < kRows; ++r) dots[r] = start;
#pragma GCC unroll 1  // GCC 12 keeps no sum in a register where it unrolls this by less than all
    for (int k = 0; k < kActivationGroup; k += 4) {
      const __m256i low = _mm256_load_si256(reinterpret_cast<const __m256i*>(q));
      const __m256i high = _mm256_load_si256(reinterpret_cast<const __m256i*>(q + 32));
      q += 4 * kLanes;
#pragma GCC unroll 6
      for (int r = 0; r < kRows; ++r) {
        std::int32_t quad;
        __builtin_memcpy(&quad, a + r * x.stride + k, sizeof(quad));
        const __m256i four = _mm256_set1_epi32(quad);
        dots[r].low = _mm256_dpbusd_avx_epi32(dots[r].low, four, low);
        dots[r].high = _mm256_dpbusd_avx_epi32(dots[r].high, four, high);
        // Rows in turn: left alone, the compiler loads the activations of all rows first and spills a sum.
        asm volatile("" : "+x"(dots[r].low), "+x"(dots[r].high));
      }
    }
    a += kActivationGroup;
    const F16 scale = load_bf16(scales);
    scales += kLanes;
#pragma GCC unroll 6
    for (int r = 0; r < kRows; ++r) {
      const F16 both = mul(set1(a_scales[r * x.scale_stride + g]), scale);
      store(sums[r], fma(to_float(dots[r]), both, load(sums[r])));
    }
  }
  for (int r = 0; r < kRows; ++r) {
    float* y = out + (row + r) * stride + panel * kLanes;
    store(y, accumulate ? add(load(y), load(sums[r])) : load(sums[r]));
  }
}

void matmul(const PackedMatrix& w, std::int64_t panel_begin, std::int64_t panel_end, const QuantizedRows& x,
            std::int64_t rows, float* out, std::int64_t stride, bool accumulate) {
  for (std::int64_t panel = panel_begin; panel < panel_end; ++panel) {
    Prefetch prefetch(w.q + (panel + 1) * w.groups * kActivationGroup * kLanes, 1, (rows + kTileRows - 1) / kTileRows);
    std::int64_t r = 0;
    const auto tile = [&]<int kRows>() {
      matmul_tile<kRows>(w, panel, x, r, out, stride, accumulate, &prefetch);
      r += kRows;
    };
    while (rows - r >= kTileRows) tile.template operator()<kTileRows>();
    switch (rows - r) {
      case 5: tile.template operator()<5>(); break;
      case 4: tile.template operator()<4>(); break;
      case 3: tile.template operator()<3>(); break;
      case 2: tile.template operator()<2>(); break;
      case 1: tile.template operator()<1>(); break;
      default: break;
    }
  }
}

}  // namespace

// Activations of two bytes take the AVX2 kernels: they are for measurement.
KernelTable avx_vnni_kernels(bool two_bytes) {
  if (two_bytes) return avx2_kernels(true);
  KernelTable table = common_kernels();
  table.ways = 4;
  table.activation_bytes = 1;
  table.needs_sums = true;
  table.quantize = quantize;
  table.matmul = matmul;
  return table;
}

}  // namespace flotilla

#else

namespace flotilla {
KernelTable avx_vnni_kernels(bool) { return {}; }  // never asked for: isa.cc lists what the machine has
}  // namespace flotilla

#endif
