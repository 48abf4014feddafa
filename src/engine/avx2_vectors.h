// 16 floats or integers as two AVX2 registers: the operations that vector_kernels.h asks for. The including file opens
// an anonymous namespace inside flotilla; everything here lands there. No #pragma once: part of one translation unit a
// file.

struct F16 {
  __m256 low, high;
};
struct I16 {
  __m256i low, high;
};

inline F16 set1(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
inline F16 load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
inline void store(float* p, F16 x) {
  _mm256_storeu_ps(p, x.low);
  _mm256_storeu_ps(p + 8, x.high);
}
inline void store(std::int32_t* p, I16 x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), x.low);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p + 8), x.high);
}
inline __m256 widen_bf16(const std::uint16_t* p) {
  const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
}
inline F16 load_bf16(const std::uint16_t* p) { return {widen_bf16(p), widen_bf16(p + 8)}; }
inline F16 load_half(const std::uint16_t* p) {
  const auto* halves = reinterpret_cast<const __m128i*>(p);
  return {_mm256_cvtph_ps(_mm_loadu_si128(halves)), _mm256_cvtph_ps(_mm_loadu_si128(halves + 1))};
}
inline void store_half(std::uint16_t* p, F16 x) {
  auto* halves = reinterpret_cast<__m128i*>(p);
  _mm_storeu_si128(halves, _mm256_cvtps_ph(x.low, _MM_FROUND_TO_NEAREST_INT));
  _mm_storeu_si128(halves + 1, _mm256_cvtps_ph(x.high, _MM_FROUND_TO_NEAREST_INT));
}
inline F16 add(F16 a, F16 b) { return {_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)}; }
inline F16 sub(F16 a, F16 b) { return {_mm256_sub_ps(a.low, b.low), _mm256_sub_ps(a.high, b.high)}; }
inline F16 mul(F16 a, F16 b) { return {_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)}; }
inline F16 div(F16 a, F16 b) { return {_mm256_div_ps(a.low, b.low), _mm256_div_ps(a.high, b.high)}; }
inline F16 fma(F16 a, F16 b, F16 c) {
  return {_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
}
inline F16 minimum(F16 a, F16 b) { return {_mm256_min_ps(a.low, b.low), _mm256_min_ps(a.high, b.high)}; }
inline F16 maximum(F16 a, F16 b) { return {_mm256_max_ps(a.low, b.low), _mm256_max_ps(a.high, b.high)}; }
inline F16 negate(F16 a) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  return {_mm256_xor_ps(a.low, sign), _mm256_xor_ps(a.high, sign)};
}
inline __m256 zero_below(__m256 x, __m256 limit, __m256 value) {
  return _mm256_andnot_ps(_mm256_cmp_ps(x, limit, _CMP_LT_OQ), value);
}
inline F16 zero_below(F16 x, F16 limit, F16 value) {
  return {zero_below(x.low, limit.low, value.low), zero_below(x.high, limit.high, value.high)};
}
inline __m256 add_exponent(__m256 p, __m256 rounded) {
  return _mm256_castsi256_ps(
      _mm256_add_epi32(_mm256_castps_si256(p), _mm256_slli_epi32(_mm256_castps_si256(rounded), 23)));
}
inline F16 add_exponent(F16 p, F16 rounded) {
  return {add_exponent(p.low, rounded.low), add_exponent(p.high, rounded.high)};
}
// value in lanes [0, count), other beyond.
inline F16 first_lanes(int count, F16 value, F16 other) {
  const __m256i limit = _mm256_set1_epi32(count);
  const __m256i index = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  const __m256i later = _mm256_add_epi32(index, _mm256_set1_epi32(8));
  return {_mm256_blendv_ps(other.low, value.low, _mm256_castsi256_ps(_mm256_cmpgt_epi32(limit, index))),
          _mm256_blendv_ps(other.high, value.high, _mm256_castsi256_ps(_mm256_cmpgt_epi32(limit, later)))};
}
inline float fold_sum(F16 x) {
  const __m256 eight = _mm256_add_ps(x.low, x.high);
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
inline float fold_maximum(F16 x) {
  const __m256 eight = _mm256_max_ps(x.low, x.high);
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}
inline float square_root(float x) { return _mm_cvtss_f32(_mm_sqrt_ss(_mm_set_ss(x))); }

// Absolute values compared as integers: NaN is larger than infinity.
inline __m256 largest_magnitude(__m256 largest, __m256 x) {
  const __m256i magnitude = _mm256_and_si256(_mm256_castps_si256(x), _mm256_set1_epi32(0x7fffffff));
  return _mm256_castsi256_ps(_mm256_max_epi32(_mm256_castps_si256(largest), magnitude));
}
inline F16 largest_magnitude(F16 largest, F16 x) {
  return {largest_magnitude(largest.low, x.low), largest_magnitude(largest.high, x.high)};
}
inline std::uint32_t fold_magnitude(F16 x) {
  const __m256i eight = _mm256_max_epi32(_mm256_castps_si256(x.low), _mm256_castps_si256(x.high));
  const __m128i four = _mm_max_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
  const __m128i two = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0x4e));
  return static_cast<std::uint32_t>(_mm_cvtsi128_si32(_mm_max_epi32(two, _mm_shuffle_epi32(two, 0xb1))));
}

inline I16 zero_integers() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
inline I16 truncate(F16 x) { return {_mm256_cvttps_epi32(x.low), _mm256_cvttps_epi32(x.high)}; }
inline F16 to_float(I16 x) { return {_mm256_cvtepi32_ps(x.low), _mm256_cvtepi32_ps(x.high)}; }
inline I16 add(I16 a, I16 b) { return {_mm256_add_epi32(a.low, b.low), _mm256_add_epi32(a.high, b.high)}; }
// Of non-negative lanes.
inline std::uint64_t fold_integers(I16 x) {
  alignas(32) std::int32_t lanes[16];
  store(lanes, x);
  std::uint64_t sum = 0;
  for (int i = 0; i < 16; ++i) sum += static_cast<std::uint64_t>(lanes[i]);
  return sum;
}

// Chains of multiply-adds that are under way together, two registers each: enough for the latency, few enough for 16.
inline constexpr int kChains = 6;
