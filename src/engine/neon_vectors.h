// 16 floats or integers as four NEON registers: the operations that vector_kernels.h asks for. The including file opens
// an anonymous namespace inside flotilla; everything here lands there. No #pragma once: part of one translation unit a
// file.

struct F16 {
  float32x4_t v[4];
};
struct I16 {
  int32x4_t v[4];
};

template <typename Each>
inline F16 each(const Each& of) {
  return {of(0), of(1), of(2), of(3)};
}
template <typename Each>
inline I16 each_integer(const Each& of) {
  return {of(0), of(1), of(2), of(3)};
}

inline F16 set1(float x) {
  return each([&](int) { return vdupq_n_f32(x); });
}
inline F16 load(const float* p) {
  return each([&](int i) { return vld1q_f32(p + 4 * i); });
}
inline void store(float* p, F16 x) {
  for (int i = 0; i < 4; ++i) vst1q_f32(p + 4 * i, x.v[i]);
}
inline void store(std::int32_t* p, I16 x) {
  for (int i = 0; i < 4; ++i) vst1q_s32(p + 4 * i, x.v[i]);
}
inline F16 load_bf16(const std::uint16_t* p) {
  return each([&](int i) { return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p + 4 * i), 16)); });
}
inline F16 load_half(const std::uint16_t* p) {
  return each([&](int i) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p + 4 * i))); });
}
inline void store_half(std::uint16_t* p, F16 x) {
  for (int i = 0; i < 4; ++i) vst1_u16(p + 4 * i, vreinterpret_u16_f16(vcvt_f16_f32(x.v[i])));
}
inline F16 add(F16 a, F16 b) {
  return each([&](int i) { return vaddq_f32(a.v[i], b.v[i]); });
}
inline F16 sub(F16 a, F16 b) {
  return each([&](int i) { return vsubq_f32(a.v[i], b.v[i]); });
}
inline F16 mul(F16 a, F16 b) {
  return each([&](int i) { return vmulq_f32(a.v[i], b.v[i]); });
}
inline F16 div(F16 a, F16 b) {
  return each([&](int i) { return vdivq_f32(a.v[i], b.v[i]); });
}
inline F16 fma(F16 a, F16 b, F16 c) {
  return each([&](int i) { return vfmaq_f32(c.v[i], a.v[i], b.v[i]); });
}
inline F16 minimum(F16 a, F16 b) {  // NaN if either is
  return each([&](int i) { return vminq_f32(a.v[i], b.v[i]); });
}
inline F16 maximum(F16 a, F16 b) {
  return each([&](int i) { return vmaxq_f32(a.v[i], b.v[i]); });
}
inline F16 negate(F16 a) {
  return each([&](int i) { return vnegq_f32(a.v[i]); });
}
inline F16 zero_below(F16 x, F16 limit, F16 value) {
  return each([&](int i) {
    return vreinterpretq_f32_u32(vbicq_u32(vreinterpretq_u32_f32(value.v[i]), vcltq_f32(x.v[i], limit.v[i])));
  });
}
inline F16 add_exponent(F16 p, F16 rounded) {
  return each([&](int i) {
    return vreinterpretq_f32_u32(
        vaddq_u32(vreinterpretq_u32_f32(p.v[i]), vshlq_n_u32(vreinterpretq_u32_f32(rounded.v[i]), 23)));
  });
}
// value in lanes [0, count), other beyond.
inline F16 first_lanes(int count, F16 value, F16 other) {
  constexpr std::int32_t kIndex[4] = {0, 1, 2, 3};
  const int32x4_t index = vld1q_s32(kIndex);
  return each([&](int i) { return vbslq_f32(vcltq_s32(index, vdupq_n_s32(count - 4 * i)), value.v[i], other.v[i]); });
}
inline float fold_sum(F16 x) {
  const float32x4_t four = vaddq_f32(vaddq_f32(x.v[0], x.v[2]), vaddq_f32(x.v[1], x.v[3]));
  const float32x2_t two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
  return vget_lane_f32(two, 0) + vget_lane_f32(two, 1);
}
inline float fold_maximum(F16 x) { return vmaxvq_f32(vmaxq_f32(vmaxq_f32(x.v[0], x.v[2]), vmaxq_f32(x.v[1], x.v[3]))); }
inline float square_root(float x) { return vget_lane_f32(vsqrt_f32(vdup_n_f32(x)), 0); }

// Absolute values compared as integers: NaN is larger than infinity.
inline F16 largest_magnitude(F16 largest, F16 x) {
  return each([&](int i) {
    const uint32x4_t magnitude = vreinterpretq_u32_f32(vabsq_f32(x.v[i]));
    return vreinterpretq_f32_u32(vmaxq_u32(vreinterpretq_u32_f32(largest.v[i]), magnitude));
  });
}
inline std::uint32_t fold_magnitude(F16 x) {
  std::uint32_t largest = 0;
  for (int i = 0; i < 4; ++i) {
    const std::uint32_t quarter = vmaxvq_u32(vreinterpretq_u32_f32(x.v[i]));
    largest = largest < quarter ? quarter : largest;
  }
  return largest;
}

inline I16 zero_integers() {
  return each_integer([](int) { return vdupq_n_s32(0); });
}
inline I16 truncate(F16 x) {
  return each_integer([&](int i) { return vcvtq_s32_f32(x.v[i]); });
}
inline F16 to_float(I16 x) {
  return each([&](int i) { return vcvtq_f32_s32(x.v[i]); });
}
inline I16 add(I16 a, I16 b) {
  return each_integer([&](int i) { return vaddq_s32(a.v[i], b.v[i]); });
}
// Of non-negative lanes.
inline std::uint64_t fold_integers(I16 x) {
  std::uint64_t sum = 0;
  for (int i = 0; i < 4; ++i) sum += vaddlvq_u32(vreinterpretq_u32_s32(x.v[i]));
  return sum;
}
// To the nearest integers, ties to even.
inline I16 round(F16 x) {
  return each_integer([&](int i) { return vcvtnq_s32_f32(x.v[i]); });
}

// Chains of multiply-adds that are under way together, four registers each: few enough for 32.
inline constexpr int kChains = 6;
