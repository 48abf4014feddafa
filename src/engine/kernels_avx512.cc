#include "engine/kernels.h"

#if defined(__AVX512VNNI__) || defined(FLOTILLA_SIMDE)

#if !defined(FLOTILLA_SIMDE)  // else the including file brings the intrinsics
#include <immintrin.h>
#endif

#include "engine/exponential.h"

namespace flotilla {
namespace {

struct F16 {
  __m512 v;
};
struct I16 {
  __m512i v;
};

inline F16 set1(float x) { return {_mm512_set1_ps(x)}; }
inline F16 load(const float* p) { return {_mm512_loadu_ps(p)}; }
inline void store(float* p, F16 x) { _mm512_storeu_ps(p, x.v); }
inline void store(std::int32_t* p, I16 x) { _mm512_storeu_si512(p, x.v); }
inline F16 load_bf16(const std::uint16_t* p) {
  const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16))};
}
inline F16 load_half(const std::uint16_t* p) {
  return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
inline void store_half(std::uint16_t* p, F16 x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtps_ph(x.v, _MM_FROUND_TO_NEAREST_INT));
}
inline F16 add(F16 a, F16 b) { return {_mm512_add_ps(a.v, b.v)}; }
inline F16 sub(F16 a, F16 b) { return {_mm512_sub_ps(a.v, b.v)}; }
inline F16 mul(F16 a, F16 b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline F16 div(F16 a, F16 b) { return {_mm512_div_ps(a.v, b.v)}; }
inline F16 fma(F16 a, F16 b, F16 c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
inline F16 minimum(F16 a, F16 b) { return {_mm512_min_ps(a.v, b.v)}; }
inline F16 maximum(F16 a, F16 b) { return {_mm512_max_ps(a.v, b.v)}; }
inline F16 negate(F16 a) {
  return {
      _mm512_castsi512_ps(_mm512_xor_si512(_mm512_castps_si512(a.v), _mm512_set1_epi32(static_cast<int>(0x80000000))))};
}
inline F16 zero_below(F16 x, F16 limit, F16 value) {
  return {_mm512_mask_blend_ps(_mm512_cmp_ps_mask(x.v, limit.v, _CMP_LT_OQ), value.v, _mm512_setzero_ps())};
}
inline F16 add_exponent(F16 p, F16 rounded) {
  return {_mm512_castsi512_ps(
      _mm512_add_epi32(_mm512_castps_si512(p.v), _mm512_slli_epi32(_mm512_castps_si512(rounded.v), 23)))};
}
// value in lanes [0, count), other beyond.
inline F16 first_lanes(int count, F16 value, F16 other) {
  return {_mm512_mask_blend_ps(static_cast<__mmask16>((1u << count) - 1), other.v, value.v)};
}
inline __m256 lower(__m512 x) { return _mm512_castps512_ps256(x); }
inline __m256 upper(__m512 x) { return _mm256_castsi256_ps(_mm512_extracti64x4_epi64(_mm512_castps_si512(x), 1)); }
inline float fold_sum(F16 x) {
  const __m256 eight = _mm256_add_ps(lower(x.v), upper(x.v));
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
inline float fold_maximum(F16 x) {
  const __m256 eight = _mm256_max_ps(lower(x.v), upper(x.v));
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}
inline float square_root(float x) { return _mm_cvtss_f32(_mm_sqrt_ss(_mm_set_ss(x))); }

// Absolute values compared as integers: NaN is larger than infinity.
inline F16 largest_magnitude(F16 largest, F16 x) {
  const __m512i magnitude = _mm512_and_si512(_mm512_castps_si512(x.v), _mm512_set1_epi32(0x7fffffff));
  return {_mm512_castsi512_ps(_mm512_max_epi32(_mm512_castps_si512(largest.v), magnitude))};
}
inline std::uint32_t fold_magnitude(F16 x) {
  const __m256i eight = _mm256_max_epi32(_mm256_castps_si256(lower(x.v)), _mm256_castps_si256(upper(x.v)));
  const __m128i four = _mm_max_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
  const __m128i two = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0x4e));
  return static_cast<std::uint32_t>(_mm_cvtsi128_si32(_mm_max_epi32(two, _mm_shuffle_epi32(two, 0xb1))));
}

inline I16 zero_integers() { return {_mm512_setzero_si512()}; }
inline I16 truncate(F16 x) { return {_mm512_cvttps_epi32(x.v)}; }
inline F16 to_float(I16 x) { return {_mm512_cvtepi32_ps(x.v)}; }
inline I16 add(I16 a, I16 b) { return {_mm512_add_epi32(a.v, b.v)}; }
// Of non-negative lanes.
inline std::uint64_t fold_integers(I16 x) {
  alignas(64) std::int32_t lanes[16];
  store(lanes, x);
  std::uint64_t sum = 0;
  for (int i = 0; i < 16; ++i) sum += static_cast<std::uint64_t>(lanes[i]);
  return sum;
}

// Chains of multiply-adds that are under way together: enough for the latency, few enough for 32 registers.
inline constexpr int kChains = 12;

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
        packed = _mm512_cvtepi32_epi8(
            _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x + begin + i), _mm512_set1_ps(inverse))));
      }
      _mm_storeu_si128(reinterpret_cast<__m128i*>(q + begin + i), _mm_xor_si128(packed, offset));
    }
  }
  return true;
}

// Keeps a sum in its register: left alone, the compiler moves the sums about and spills some in the inner loop.
inline void pin([[maybe_unused]] __m512i& sum) {
#if !defined(FLOTILLA_SIMDE)
  asm volatile("" : "+v"(sum));
#endif
}

// kRows rows times kPanels neighbouring panels.
template <int kRows, int kPanels>
inline void matmul_tile(const PackedMatrix& w, std::int64_t panel, const QuantizedRows& x, std::int64_t row, float* out,
                        std::int64_t stride, bool accumulate, Prefetch* prefetch) {
  const std::int64_t groups = w.groups;
  const std::int8_t* q = w.q + panel * groups * kActivationGroup * kLanes;
  const std::int64_t panel_bytes = groups * kActivationGroup * kLanes;
  const std::uint8_t* a = x.q + row * x.stride;
  const float* a_scales = x.scales + row * x.scale_stride;
  // A row of the head's output is far from the next one: no line of it is in a cache when it is stored.
  for (int r = 0; r < kRows; ++r) {
    for (int p = 0; p < kPanels; ++p) __builtin_prefetch(out + (row + r) * stride + (panel + p) * kLanes, 1, 3);
  }
  alignas(64) float sums[kRows][kPanels][16] = {};
  for (std::int64_t g = 0; g < groups; ++g) {
    __m512i dots[kRows][kPanels];
    prefetch->one_group();
#pragma GCC unroll 4
    for (int p = 0; p < kPanels; ++p) {
      const std::int16_t* weights = w.sums + ((panel + p) * groups + g) * kLanes;
      const __m512i sum = _mm512_cvtepi16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(weights)));
      const __m512i start = _mm512_sub_epi32(_mm512_setzero_si512(), _mm512_slli_epi32(sum, 7));
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) dots[r][p] = start;
    }
#pragma GCC unroll 4
    for (int k = 0; k < kActivationGroup; k += 4) {
      __m512i quads[kPanels];
#pragma GCC unroll 4
      for (int p = 0; p < kPanels; ++p) quads[p] = _mm512_loadu_si512(q + p * panel_bytes);
      q += 4 * kLanes;
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        std::int32_t quad;
        __builtin_memcpy(&quad, a + r * x.stride + k, sizeof(quad));
        const __m512i four = _mm512_set1_epi32(quad);
#pragma GCC unroll 4
        for (int p = 0; p < kPanels; ++p) {
          dots[r][p] = _mm512_dpbusd_epi32(dots[r][p], four, quads[p]);
          pin(dots[r][p]);
        }
      }
    }
    a += kActivationGroup;
#pragma GCC unroll 4
    for (int p = 0; p < kPanels; ++p) {
      const F16 scale = load_bf16(w.scales + ((panel + p) * groups + g) * kLanes);
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        const F16 both = mul(set1(a_scales[r * x.scale_stride + g]), scale);
        store(sums[r][p], fma(to_float({dots[r][p]}), both, load(sums[r][p])));
      }
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int p = 0; p < kPanels; ++p) {
      float* y = out + (row + r) * stride + (panel + p) * kLanes;
      store(y, accumulate ? add(load(y), load(sums[r][p])) : load(sums[r][p]));
    }
  }
}

template <int kPanels>
void matmul_panels(const PackedMatrix& w, std::int64_t panel, const QuantizedRows& x, std::int64_t rows, float* out,
                   std::int64_t stride, bool accumulate) {
  Prefetch prefetch(w.q + (panel + kPanels) * w.groups * kActivationGroup * kLanes, kPanels,
                    rows / 8 + __builtin_popcountll(static_cast<std::uint64_t>(rows % 8)));
  std::int64_t r = 0;
  for (; r + 8 <= rows; r += 8) matmul_tile<8, kPanels>(w, panel, x, r, out, stride, accumulate, &prefetch);
  for (; r + 4 <= rows; r += 4) matmul_tile<4, kPanels>(w, panel, x, r, out, stride, accumulate, &prefetch);
  for (; r + 2 <= rows; r += 2) matmul_tile<2, kPanels>(w, panel, x, r, out, stride, accumulate, &prefetch);
  if (r < rows) matmul_tile<1, kPanels>(w, panel, x, r, out, stride, accumulate, &prefetch);
}

void matmul(const PackedMatrix& w, std::int64_t panel_begin, std::int64_t panel_end, const QuantizedRows& x,
            std::int64_t rows, float* out, std::int64_t stride, bool accumulate) {
  std::int64_t panel = panel_begin;
  for (; panel + 2 <= panel_end; panel += 2) matmul_panels<2>(w, panel, x, rows, out, stride, accumulate);
  if (panel < panel_end) matmul_panels<1>(w, panel, x, rows, out, stride, accumulate);
}

}  // namespace

// Activations of two bytes take the AVX2 kernels: they are for measurement.
KernelTable avx512_kernels(bool two_bytes) {
  KernelTable table = common_kernels();
  if (two_bytes) {
    const KernelTable narrow = avx2_kernels(true);
    table.ways = narrow.ways;
    table.activation_bytes = narrow.activation_bytes;
    table.quantize = narrow.quantize;
    table.matmul = narrow.matmul;
    return table;
  }
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
KernelTable avx512_kernels(bool) { return {}; }  // never asked for: isa.cc lists what the machine has
}  // namespace flotilla

#endif
