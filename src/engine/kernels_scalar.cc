#include <algorithm>
#include <bit>
#include <cmath>

#include "engine/exponential.h"
#include "engine/kernels.h"

// The reference: arithmetic 1 in plain loops, one row and one output at a time. The vector files must agree with it.
namespace flotilla {
namespace {

float bf16(std::uint16_t bits) { return std::bit_cast<float>(std::uint32_t{bits} << 16); }

float half_to_float(std::uint16_t bits) {
  const std::uint32_t sign = (bits & 0x8000u) << 16;
  const std::uint32_t magnitude = bits & 0x7fffu;
  if (magnitude >= 0x7c00) return std::bit_cast<float>(sign | 0x7f800000 | (magnitude & 0x3ff) << 13);
  if (magnitude >= 0x0400) return std::bit_cast<float>(sign | ((magnitude << 13) + (112u << 23)));
  const float subnormal = static_cast<float>(magnitude) * 0x1p-24f;
  return sign != 0 ? -subnormal : subnormal;
}

// To nearest, ties to even. x is finite and below 65520.
std::uint16_t float_to_half(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t sign = bits >> 16 & 0x8000;
  const std::uint32_t magnitude = bits & 0x7fffffff;
  if (magnitude >= 113u << 23) {  // normal as half: drop 13 bits of the significand
    return static_cast<std::uint16_t>(sign | ((magnitude - (112u << 23) + 0xfff + (magnitude >> 13 & 1)) >> 13));
  }
  // A multiple of 2^-24: adding 2^-1 leaves just those bits.
  const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
  return static_cast<std::uint16_t>(sign |
                                    (std::bit_cast<std::uint32_t>(shifted) - std::bit_cast<std::uint32_t>(0.5f)));
}

float exponential(float x) {
  using namespace exp_constants;
  if (x < kLow) return 0.0f;
  x = kHigh < x ? kHigh : x;
  const float rounded = std::fma(x, kLog2E, kRound);
  const float n = rounded - kRound;
  float r = std::fma(n, -kLn2High, x);
  r = std::fma(n, -kLn2Low, r);
  float p = std::fma(kC6, r, kC5);
  p = std::fma(p, r, kC4);
  p = std::fma(p, r, kC3);
  p = std::fma(p, r, kC2);
  p = std::fma(p, r, 1.0f);
  p = std::fma(p, r, 1.0f);
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(p) + (std::bit_cast<std::uint32_t>(rounded) << 23));
}

// The 16 partial sums of a reduction: lane j with j + 8, then + 4, + 2, + 1.
float fold(const float* lanes) {
  float sums[kLanes];
  std::copy_n(lanes, kLanes, sums);
  for (std::int64_t width = kLanes / 2; width > 0; width /= 2) {
    for (std::int64_t j = 0; j < width; ++j) sums[j] += sums[j + width];
  }
  return sums[0];
}

void rms_norm(const float* x, const float* weight, std::int64_t n, float epsilon, float* y) {
  float lanes[kLanes] = {};
  for (std::int64_t i = 0; i < n; ++i) lanes[i % kLanes] = std::fma(x[i], x[i], lanes[i % kLanes]);
  const float r = 1.0f / std::sqrt(fold(lanes) / static_cast<float>(n) + epsilon);
  for (std::int64_t i = 0; i < n; ++i) y[i] = x[i] * r * weight[i];
}

std::uint32_t largest_bits(const float* x, std::int64_t n) {
  std::uint32_t largest = 0;
  for (std::int64_t i = 0; i < n; ++i) largest = std::max(largest, std::bit_cast<std::uint32_t>(x[i]) & 0x7fffffff);
  return largest;
}

// To the nearest integer, ties to even; |x| < 2^22.
std::int32_t round_to_integer(float x) {
  return std::bit_cast<std::int32_t>(x + exp_constants::kRound) - std::bit_cast<std::int32_t>(exp_constants::kRound);
}

template <bool kTwoBytes>
bool quantize(const float* x, std::int64_t n, const QuantizedRows& out, std::int64_t row) {
  const float limit = kTwoBytes ? kTwoByteLimit : kOneByteLimit;
  auto* q = reinterpret_cast<std::int16_t*>(out.q + row * out.stride);
  for (std::int64_t g = 0; g < out.groups; ++g) {
    const std::int64_t begin = g * kActivationGroup;
    const std::int64_t count = std::min(kActivationGroup, n - begin);
    const std::uint32_t bits = largest_bits(x + begin, count);
    if (bits >= kInfinityBits) return false;
    const float amax = std::bit_cast<float>(bits);
    const bool zero = amax < kSmallestAmax;
    const float inverse = zero ? 0.0f : limit / amax;
    out.scales[row * out.scale_stride + g] = zero ? 0.0f : amax / limit;
    for (std::int64_t i = 0; i < kActivationGroup; ++i) {
      q[begin + i] = i < count ? static_cast<std::int16_t>(round_to_integer(x[begin + i] * inverse)) : std::int16_t{0};
    }
  }
  return true;
}

void matmul(const PackedMatrix& w, std::int64_t panel_begin, std::int64_t panel_end, const QuantizedRows& x,
            std::int64_t rows, float* out, std::int64_t stride, bool add) {
  for (std::int64_t panel = panel_begin; panel < panel_end; ++panel) {
    for (std::int64_t r = 0; r < rows; ++r) {
      const auto* a = reinterpret_cast<const std::int16_t*>(x.q + r * x.stride);
      float acc[kLanes] = {};
      for (std::int64_t g = 0; g < w.groups; ++g) {
        const std::int8_t* q = w.q + (panel * w.groups + g) * kActivationGroup * kLanes;
        std::int32_t dots[kLanes] = {};
        for (std::int64_t k = 0; k < kActivationGroup; k += 2) {
          for (std::int64_t j = 0; j < kLanes; ++j) {
            dots[j] += a[g * kActivationGroup + k] * q[k * kLanes + 2 * j] +
                       a[g * kActivationGroup + k + 1] * q[k * kLanes + 2 * j + 1];
          }
        }
        const std::uint16_t* scales = w.scales + (panel * w.groups + g) * kLanes;
        for (std::int64_t j = 0; j < kLanes; ++j) {
          acc[j] = std::fma(static_cast<float>(dots[j]), x.scales[r * x.scale_stride + g] * bf16(scales[j]), acc[j]);
        }
      }
      float* y = out + r * stride + panel * kLanes;
      for (std::int64_t j = 0; j < kLanes; ++j) y[j] = add ? y[j] + acc[j] : acc[j];
    }
  }
}

void add(float* x, const float* y, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) x[i] += y[i];
}

void rope(float* x, const float* cosines, const float* sines, std::int64_t half) {
  for (std::int64_t i = 0; i < half; ++i) {
    const float a = x[i];
    const float b = x[i + half];
    x[i] = std::fma(a, cosines[i], -(b * sines[i]));
    x[i + half] = std::fma(b, cosines[i], a * sines[i]);
  }
}

void to_half(const float* x, std::int64_t n, std::uint16_t* out) {
  for (std::int64_t i = 0; i < n; ++i) out[i] = float_to_half(x[i]);
}

void attend(const Attention& a, const AttentionRow& row) {
  for (int head = 0; head < a.queries; ++head) {
    const float* q = row.q + head * a.head_dim;
    float* out = row.out + head * a.head_dim;
    float maximum = 0;
    float sum = 0;
    for (std::int32_t begin = 0; begin < row.keys; begin += 16) {
      const std::uint16_t* keys = a.kv + row.table[begin / 16] * a.block_stride;
      const std::uint16_t* values = keys + 16 * a.head_dim;
      const std::int32_t count = std::min(16, row.keys - begin);
      float scores[16];
      for (std::int32_t j = 0; j < count; ++j) {
        float score = 0;
        for (int d = 0; d < a.head_dim; ++d) score = std::fma(q[d], half_to_float(keys[d * 16 + j]), score);
        scores[j] = score * a.scale;
      }
      const float block_maximum = *std::max_element(scores, scores + count);
      float weights[16] = {};
      for (std::int32_t j = 0; j < count; ++j) weights[j] = exponential(scores[j] - block_maximum);
      const float block_sum = fold(weights);
      const float merged = begin == 0 ? block_maximum : std::max(maximum, block_maximum);
      const float before = begin == 0 ? 0.0f : exponential(maximum - merged);
      const float now = exponential(block_maximum - merged);
      for (int d = 0; d < a.head_dim; ++d) {
        float value = 0;
        for (std::int32_t j = 0; j < count; ++j)
          value = std::fma(weights[j], half_to_float(values[j * a.head_dim + d]), value);
        out[d] = begin == 0 ? value : std::fma(out[d], before, value * now);
      }
      sum = begin == 0 ? block_sum : std::fma(sum, before, block_sum * now);
      maximum = merged;
    }
    const float inverse = 1.0f / sum;
    for (int d = 0; d < a.head_dim; ++d) out[d] *= inverse;
  }
}

void attend(const Attention& a) {
  for (int i = 0; i < a.row_count; ++i) attend(a, a.rows[i]);
}

void swiglu(const float* gate, const float* up, std::int64_t n, float* out) {
  for (std::int64_t i = 0; i < n; ++i) out[i] = gate[i] / (1.0f + exponential(-gate[i])) * up[i];
}

float maximum(const float* x, std::int64_t n) { return *std::max_element(x, x + n); }

// floor(p * 2^40) for p in [0, 1]: both products and the difference are exact.
std::uint64_t sampling_weight(float p) {
  const float scaled = p * 0x1p20f;
  const auto high = static_cast<std::int32_t>(scaled);
  const auto low = static_cast<std::int32_t>((scaled - static_cast<float>(high)) * 0x1p20f);
  return (static_cast<std::uint64_t>(high) << 20) + static_cast<std::uint64_t>(low);
}

ChunkSums chunk_sums(const float* logits, std::int64_t n, float maximum, float temperature) {
  float lanes[kLanes] = {};
  ChunkSums sums;
  for (std::int64_t i = 0; i < n; ++i) {
    const float p = exponential((logits[i] - maximum) / temperature);
    lanes[i % kLanes] += p;
    sums.weight += sampling_weight(p);
  }
  sums.sum = fold(lanes);
  return sums;
}

void chunk_weights(const float* logits, std::int64_t n, float maximum, float temperature, std::uint64_t* weights) {
  for (std::int64_t i = 0; i < n; ++i) {
    weights[i] = sampling_weight(exponential((logits[i] - maximum) / temperature));
  }
}

}  // namespace

KernelTable scalar_kernels(bool two_bytes) {
  KernelTable table;
  table.ways = 2;
  table.activation_bytes = 2;
  table.rms_norm = rms_norm;
  table.quantize = two_bytes ? quantize<true> : quantize<false>;
  table.matmul = matmul;
  table.add = add;
  table.largest_bits = largest_bits;
  table.rope = rope;
  table.to_half = to_half;
  table.attend = attend;
  table.swiglu = swiglu;
  table.maximum = maximum;
  table.chunk_sums = chunk_sums;
  table.chunk_weights = chunk_weights;
  return table;
}

}  // namespace flotilla
