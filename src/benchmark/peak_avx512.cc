#include "benchmark/peak_loops.h"

#if defined(__AVX512F__) && defined(__AVX512VNNI__)

#include <immintrin.h>

namespace flotilla {
namespace {

constexpr int kChains = 16;

// The compiler may neither see that the operands never change nor drop a result.
inline void hide(__m512i& x) { asm volatile("" : "+v"(x)); }
inline void hide(__m512& x) { asm volatile("" : "+v"(x)); }

void dot_bytes(std::int64_t rounds) {
  __m512i a = _mm512_set1_epi8(3), b = _mm512_set1_epi8(-5);
  hide(a);
  hide(b);
  __m512i sums[kChains];
#pragma GCC unroll 16
  for (__m512i& sum : sums) sum = _mm512_setzero_si512();
  for (std::int64_t i = 0; i < rounds; ++i) {
#pragma GCC unroll 16
    for (int k = 0; k < kChains; ++k) {
      sums[k] = _mm512_dpbusd_epi32(sums[k], a, b);
      hide(sums[k]);  // or the compiler keeps some in memory
    }
  }
#pragma GCC unroll 16
  for (__m512i& sum : sums) hide(sum);
}

void multiply_add(std::int64_t rounds) {
  __m512 a = _mm512_set1_ps(1.0f), b = _mm512_set1_ps(0.5f);
  hide(a);
  hide(b);
  __m512 sums[kChains];
#pragma GCC unroll 16
  for (__m512& sum : sums) sum = _mm512_setzero_ps();
  for (std::int64_t i = 0; i < rounds; ++i) {
#pragma GCC unroll 16
    for (int k = 0; k < kChains; ++k) {
      sums[k] = _mm512_fmadd_ps(a, b, sums[k]);
      hide(sums[k]);
    }
  }
#pragma GCC unroll 16
  for (__m512& sum : sums) hide(sum);
}

std::uint64_t read(const std::uint8_t* from, std::int64_t bytes) {
  __m512i sums[4] = {_mm512_setzero_si512(), _mm512_setzero_si512(), _mm512_setzero_si512(), _mm512_setzero_si512()};
  for (std::int64_t i = 0; i < bytes; i += 256) {
    for (int k = 0; k < 4; ++k) sums[k] = _mm512_xor_si512(sums[k], _mm512_load_si512(from + i + 64 * k));
  }
  const __m512i all = _mm512_xor_si512(_mm512_xor_si512(sums[0], sums[1]), _mm512_xor_si512(sums[2], sums[3]));
  alignas(64) std::uint64_t words[8];
  _mm512_store_si512(words, all);
  std::uint64_t result = 0;
  for (const std::uint64_t word : words) result ^= word;
  return result;
}

}  // namespace

PeakLoops avx512_peak_loops() {
  PeakLoops loops;
  loops.int8[0] = {kChains * 128, dot_bytes};
  loops.fp32 = {kChains * 32, multiply_add};
  loops.read = read;
  return loops;
}

}  // namespace flotilla

#else

namespace flotilla {
PeakLoops avx512_peak_loops() { return {}; }  // never asked for: supported_isas() lists what the machine has
}  // namespace flotilla

#endif
