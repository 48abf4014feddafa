// kernels_avx_vnni.cc once more, with its one instruction beyond AVX2 emulated, so that a machine without it tests the
// same source. Part of the tests only.
#include <immintrin.h>

namespace {

// Even and odd bytes as 16 bits: their products and the sums of pairs of those are exact in 32.
inline __m256i emulated_dpbusd(__m256i sum, __m256i a, __m256i b) {
  const __m256i even =
      _mm256_madd_epi16(_mm256_and_si256(a, _mm256_set1_epi16(0xff)), _mm256_srai_epi16(_mm256_slli_epi16(b, 8), 8));
  const __m256i odd = _mm256_madd_epi16(_mm256_srli_epi16(a, 8), _mm256_srai_epi16(b, 8));
  return _mm256_add_epi32(sum, _mm256_add_epi32(even, odd));
}

}  // namespace

#define FLOTILLA_EMULATED
#define _mm256_dpbusd_avx_epi32 emulated_dpbusd
#define avx_vnni_kernels emulated_avx_vnni_kernels
#include "engine/kernels_avx_vnni.cc"
