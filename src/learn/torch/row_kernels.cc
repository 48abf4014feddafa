#include "learn/torch/row_kernels.h"

#include <algorithm>
#include <bit>
#include <cmath>

// One copy of each function for machines with AVX2 and one for the others; the loader picks. By feature: an "arch="
// here would name one maker's processors and leave the others with the slow copy.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define FLOTILLA_CLONES __attribute__((target_clones("avx2", "default")))
#else
#define FLOTILLA_CLONES
#endif

namespace flotilla::row {
namespace {

constexpr std::int64_t kQuantGroup = 64;
// Adding and taking away 1.5 * 2^23 rounds |x| < 2^22 to an integer, half to even.
constexpr float kRounder = 0x1.8p23f;

// exp(x) with a relative error of about 1e-7: x = n ln 2 + r, a polynomial in r (the Taylor series to the 7th power:
// |r| <= 0.347 leaves 5e-9), and n put into the exponent.
inline float fast_exp(float x) {
  constexpr float kLog2E = 1.44269504f, kLn2High = 0.693359375f, kLn2Low = -2.12194440e-4f;
  x = std::min(std::max(x, -87.0f), 88.0f);
  const float n = (x * kLog2E + kRounder) - kRounder;
  const float r = (x - n * kLn2High) - n * kLn2Low;
  float p = 1.0f / 5040;
  p = p * r + 1.0f / 720;
  p = p * r + 1.0f / 120;
  p = p * r + 1.0f / 24;
  p = p * r + 1.0f / 6;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  return p * std::bit_cast<float>((static_cast<std::int32_t>(n) + 127) << 23);
}

inline float sigmoid(float x) { return 1.0f / (1.0f + fast_exp(-x)); }

// Eight running sums, so that the order is fixed and vector code possible.
inline float sum_of_eight(const float* sums) {
  return ((sums[0] + sums[4]) + (sums[1] + sums[5])) + ((sums[2] + sums[6]) + (sums[3] + sums[7]));
}

}  // namespace

FLOTILLA_CLONES float rms_norm(const float* x, const float* weight, std::int64_t n, float epsilon, float* y) {
  float sums[8] = {};
  const std::int64_t whole = n / 8 * 8;
  for (std::int64_t i = 0; i < whole; i += 8) {
    for (int lane = 0; lane < 8; ++lane) sums[lane] += x[i + lane] * x[i + lane];
  }
  for (std::int64_t i = whole; i < n; ++i) sums[i - whole] += x[i] * x[i];
  const float scale = 1.0f / std::sqrt(sum_of_eight(sums) / static_cast<float>(n) + epsilon);
  for (std::int64_t i = 0; i < n; ++i) y[i] = x[i] * scale * weight[i];
  return scale;
}

FLOTILLA_CLONES void rms_norm_again(const float* x, const float* weight, std::int64_t n, float scale, float* y) {
  for (std::int64_t i = 0; i < n; ++i) y[i] = x[i] * scale * weight[i];
}

FLOTILLA_CLONES void rms_norm_backward(const float* dy, const float* x, const float* weight, std::int64_t n,
                                       float scale, float* dx) {
  float sums[8] = {};
  const std::int64_t whole = n / 8 * 8;
  for (std::int64_t i = 0; i < whole; i += 8) {
    for (int lane = 0; lane < 8; ++lane) sums[lane] += dy[i + lane] * weight[i + lane] * x[i + lane];
  }
  for (std::int64_t i = whole; i < n; ++i) sums[i - whole] += dy[i] * weight[i] * x[i];
  const float pull = sum_of_eight(sums) / static_cast<float>(n) * scale * scale;
  for (std::int64_t i = 0; i < n; ++i) dx[i] += scale * (dy[i] * weight[i] - x[i] * pull);
}

FLOTILLA_CLONES void rms_norm_weight_gradient(const float* dy, const float* x, std::int64_t n, float scale,
                                              float* sum) {
  for (std::int64_t i = 0; i < n; ++i) sum[i] += dy[i] * x[i] * scale;
}

FLOTILLA_CLONES void rotate(float* x, std::int64_t heads, std::int64_t dim, const float* cosine, const float* sine,
                            float sign) {
  const std::int64_t half = dim / 2;
  for (std::int64_t head = 0; head < heads; ++head, x += dim) {
    for (std::int64_t i = 0; i < half; ++i) {
      const float a = x[i], b = x[i + half];
      x[i] = a * cosine[i] - sign * b * sine[i];
      x[i + half] = b * cosine[i] + sign * a * sine[i];
    }
  }
}

FLOTILLA_CLONES void swiglu(const float* gate_up, std::int64_t n, float* h) {
  const float* up = gate_up + n;
  for (std::int64_t i = 0; i < n; ++i) h[i] = gate_up[i] * sigmoid(gate_up[i]) * up[i];
}

FLOTILLA_CLONES void swiglu_backward(const float* dh, const float* gate_up, std::int64_t n, float* d_gate_up) {
  const float* up = gate_up + n;
  for (std::int64_t i = 0; i < n; ++i) {
    const float gate = gate_up[i], s = sigmoid(gate);
    d_gate_up[i] = dh[i] * up[i] * s * (1.0f + gate * (1.0f - s));
    d_gate_up[n + i] = dh[i] * gate * s;
  }
}

FLOTILLA_CLONES void fake_quantize(float* x, std::int64_t n) {
  for (std::int64_t begin = 0; begin < n; begin += kQuantGroup) {
    const std::int64_t count = std::min(kQuantGroup, n - begin);
    float* group = x + begin;
    std::int32_t bits = 0;  // of the largest absolute value: bit patterns of positive floats order as the floats do
    for (std::int64_t i = 0; i < count; ++i) bits = std::max(bits, std::bit_cast<std::int32_t>(group[i]) & 0x7fffffff);
    const float largest = std::bit_cast<float>(bits);
    if (largest < 0x1p-100f) {
      std::fill_n(group, count, 0.0f);
      continue;
    }
    const float inverse = 127.0f / largest, unit = largest / 127.0f;
    for (std::int64_t i = 0; i < count; ++i) group[i] = ((group[i] * inverse + kRounder) - kRounder) * unit;
  }
}

FLOTILLA_CLONES void round_to_bf16(float* x, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) {
    const auto bits = std::bit_cast<std::uint32_t>(x[i]);
    x[i] = std::bit_cast<float>((bits + 0x7fff + ((bits >> 16) & 1)) & 0xffff0000u);
  }
}

}  // namespace flotilla::row
