#include "benchmark/peak_loops.h"

#if defined(__AVXVNNI__)

#include <immintrin.h>

namespace flotilla {
namespace {

constexpr int kChains = 12;

// The compiler may neither see that the operands never change nor drop a result.
inline void hide(__m256i& x) { asm volatile("" : "+x"(x)); }

void dot_bytes(std::int64_t rounds) {
  __m256i a = _mm256_set1_epi8(3), b = _mm256_set1_epi8(-5);
  hide(a);
  hide(b);
  __m256i sums[kChains];
#pragma GCC unroll 12
  for (__m256i& sum : sums) sum = _mm256_setzero_si256();
  for (std::int64_t i = 0; i < rounds; ++i) {
#pragma GCC unroll 12
    for (int k = 0; k < kChains; ++k) {
      sums[k] = _mm256_dpbusd_avx_epi32(sums[k], a, b);
      hide(sums[k]);  // or one sum would do for all
    }
  }
#pragma GCC unroll 12
  for (__m256i& sum : sums) hide(sum);
}

}  // namespace

PeakLoops avx_vnni_peak_loops() {
  PeakLoops loops = avx2_peak_loops();
  loops.int8[0] = {kChains * 64, dot_bytes};
  loops.int8[1] = {};
  return loops;
}

}  // namespace flotilla

#else

namespace flotilla {
PeakLoops avx_vnni_peak_loops() { return {}; }  // never asked for: supported_isas() lists what the machine has
}  // namespace flotilla

#endif
