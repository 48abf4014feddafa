// The instructions of the AVX-512 files, emulated, so that a machine without them tests the same sources. Part of the
// tests only; needs AVX2, FMA and F16C, since SIMDe emulates a fused operation by two without them. No #pragma once: it
// is for one file a translation unit.
#define SIMDE_ENABLE_NATIVE_ALIASES
#include <simde/x86/avx512.h>
#include <simde/x86/fma.h>

#include <cmath>
#include <cstdint>
#include <cstring>

namespace {

template <typename T, typename Vector>
struct Lanes {
  static constexpr int kCount = sizeof(Vector) / sizeof(T);
  T lane[kCount];
  explicit Lanes(Vector v) { std::memcpy(lane, &v, sizeof(v)); }
};

// Conversions that SIMDe 0.7 lacks, lane by lane.
template <typename To, typename ToVector, typename From, typename FromVector, typename Convert>
ToVector convert(FromVector x, Convert each) {
  const Lanes<From, FromVector> from(x);
  To to[sizeof(ToVector) / sizeof(To)];
  for (int i = 0; i < Lanes<From, FromVector>::kCount; ++i) to[i] = static_cast<To>(each(from.lane[i]));
  ToVector out;
  std::memcpy(&out, to, sizeof(out));
  return out;
}
const auto kSame = [](auto x) { return x; };

inline simde__m512i shim_cvtepu16_epi32(simde__m256i x) {
  return convert<std::int32_t, simde__m512i, std::uint16_t>(x, kSame);
}
inline simde__m512i shim_cvtepi16_epi32(simde__m256i x) {
  return convert<std::int32_t, simde__m512i, std::int16_t>(x, kSame);
}
inline simde__m512i shim_cvttps_epi32(simde__m512 x) { return convert<std::int32_t, simde__m512i, float>(x, kSame); }
inline simde__m512i shim_cvtps_epi32(simde__m512 x) {
  return convert<std::int32_t, simde__m512i, float>(x, [](float v) { return std::lrintf(v); });
}
inline simde__m512 shim_cvtepi32_ps(simde__m512i x) { return convert<float, simde__m512, std::int32_t>(x, kSame); }
inline simde__m128i shim_cvtepi32_epi8(simde__m512i x) {
  return convert<std::int8_t, simde__m128i, std::int32_t>(x, kSame);
}

inline simde__m512 shim_cvtph_ps(simde__m256i x) {
  simde__m512 out;
  simde__m128i half[2];
  float* to = reinterpret_cast<float*>(&out);
  std::memcpy(half, &x, sizeof(half));
  _mm256_storeu_ps(to, _mm256_cvtph_ps(half[0]));
  _mm256_storeu_ps(to + 8, _mm256_cvtph_ps(half[1]));
  return out;
}
inline simde__m256i shim_cvtps_ph(simde__m512 x, int) {
  const float* from = reinterpret_cast<const float*>(&x);
  const simde__m128i half[2] = {_mm256_cvtps_ph(_mm256_loadu_ps(from), _MM_FROUND_TO_NEAREST_INT),
                                _mm256_cvtps_ph(_mm256_loadu_ps(from + 8), _MM_FROUND_TO_NEAREST_INT)};
  simde__m256i out;
  std::memcpy(&out, half, sizeof(out));
  return out;
}

}  // namespace

#define _mm512_cvtph_ps shim_cvtph_ps
#undef _mm512_cvtps_ph  // a macro in some compilers
#define _mm512_cvtps_ph shim_cvtps_ph
#define _mm512_cvtepu16_epi32 shim_cvtepu16_epi32
#define _mm512_cvtepi16_epi32 shim_cvtepi16_epi32
#define _mm512_cvttps_epi32 shim_cvttps_epi32
#define _mm512_cvtps_epi32 shim_cvtps_epi32
#define _mm512_cvtepi32_ps shim_cvtepi32_ps
#define _mm512_cvtepi32_epi8 shim_cvtepi32_epi8

#define __mmask16 simde__mmask16

#define FLOTILLA_SIMDE
