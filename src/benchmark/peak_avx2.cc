#include "benchmark/peak_loops.h"

#if defined(__AVX2__) && defined(__FMA__)

#include <immintrin.h>

namespace flotilla {
namespace {

constexpr int kChains = 10;

// The compiler may neither see that the operands never change nor drop a result.
inline void hide(__m256i& x) { asm volatile("" : "+x"(x)); }
inline void hide(__m256& x) { asm volatile("" : "+x"(x)); }

// Bytes widened to 16 bits beforehand.
void dot_words(std::int64_t rounds) {
  __m256i a = _mm256_set1_epi16(3), b = _mm256_set1_epi16(-5);
  hide(a);
  hide(b);
  __m256i sums[kChains];
  for (__m256i& sum : sums) sum = _mm256_setzero_si256();
  for (std::int64_t i = 0; i < rounds; ++i) {
#pragma GCC unroll 10
    for (int k = 0; k < kChains; ++k) {
      hide(a);  // or one product would do for all
      sums[k] = _mm256_add_epi32(sums[k], _mm256_madd_epi16(a, b));
    }
  }
  for (__m256i& sum : sums) hide(sum);
}

// Magnitudes times signed bytes, pairs in 16 bits, then pairs of those in 32.
void dot_bytes(std::int64_t rounds) {
  __m256i a = _mm256_set1_epi8(3), b = _mm256_set1_epi8(-5), ones = _mm256_set1_epi16(1);
  hide(a);
  hide(b);
  hide(ones);
  __m256i sums[kChains];
  for (__m256i& sum : sums) sum = _mm256_setzero_si256();
  for (std::int64_t i = 0; i < rounds; ++i) {
#pragma GCC unroll 10
    for (int k = 0; k < kChains; ++k) {
      hide(a);  // or one product would do for all
      sums[k] = _mm256_add_epi32(sums[k], _mm256_madd_epi16(_mm256_maddubs_epi16(a, b), ones));
    }
  }
  for (__m256i& sum : sums) hide(sum);
}

void multiply_add(std::int64_t rounds) {
  __m256 a = _mm256_set1_ps(1.0f), b = _mm256_set1_ps(0.5f);
  hide(a);
  hide(b);
  __m256 sums[kChains];
  for (__m256& sum : sums) sum = _mm256_setzero_ps();
  for (std::int64_t i = 0; i < rounds; ++i) {
#pragma GCC unroll 10
    for (int k = 0; k < kChains; ++k) sums[k] = _mm256_fmadd_ps(a, b, sums[k]);
  }
  for (__m256& sum : sums) hide(sum);
}

std::uint64_t read(const std::uint8_t* from, std::int64_t bytes) {
  const auto* at = reinterpret_cast<const __m256i*>(from);
  __m256i sums[4] = {_mm256_setzero_si256(), _mm256_setzero_si256(), _mm256_setzero_si256(), _mm256_setzero_si256()};
  for (std::int64_t i = 0; i < bytes / 32; i += 4) {
    for (int k = 0; k < 4; ++k) sums[k] = _mm256_xor_si256(sums[k], _mm256_load_si256(at + i + k));
  }
  const __m256i all = _mm256_xor_si256(_mm256_xor_si256(sums[0], sums[1]), _mm256_xor_si256(sums[2], sums[3]));
  alignas(32) std::uint64_t words[4];
  _mm256_store_si256(reinterpret_cast<__m256i*>(words), all);
  return words[0] ^ words[1] ^ words[2] ^ words[3];
}

}  // namespace

PeakLoops avx2_peak_loops() {
  PeakLoops loops;
  loops.int8[0] = {kChains * 32, dot_words};
  loops.int8[1] = {kChains * 64, dot_bytes};
  loops.fp32 = {kChains * 16, multiply_add};
  loops.read = read;
  return loops;
}

}  // namespace flotilla

#else

namespace flotilla {
PeakLoops avx2_peak_loops() { return {}; }  // never asked for: supported_isas() lists what the machine has
}  // namespace flotilla

#endif
