#pragma once

#include <cstdint>

namespace flotilla {

// The functions of arithmetic 1 (docs/design/arithmetic.md) that every instruction set implements. All of them give the
// same bits. Plain pointers and no library code: the vector files must not emit shared inline functions.

inline constexpr std::int64_t kLanes = 16;  // width of a reduction and of a weight panel
inline constexpr std::int64_t kActivationGroup =
    64;  // columns that share an activation scale, aligned with kScaleGroup
inline constexpr std::int64_t kVocabularyChunk = 1024;
inline constexpr std::uint32_t kInfinityBits = 0x7f800000;
inline constexpr std::uint32_t kHalfOverflowBits = 0x477ff000;  // 65520: rounds to infinity as half precision

// A weight matrix in panels of 16 outputs, each panel contiguous. Columns are padded with zeros to whole groups, rows
// to whole panels. Element (row, col) lies at q[(row/16 * padded_cols + col/ways * ways) * 16 + row%16 * ways +
// col%ways].
struct PackedMatrix {
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::int64_t groups = 0;
  std::int64_t panels = 0;
  int ways = 0;
  std::int8_t* q = nullptr;
  std::uint16_t* scales = nullptr;  // [panels][groups][16] bf16
  std::int16_t* sums = nullptr;     // [panels][groups][16] sum of the integers; only where KernelTable::needs_sums
};

// Activation rows rounded to integers: row r starts at q + r * stride (bytes), its scales at scales + r * scale_stride.
struct QuantizedRows {
  std::uint8_t* q = nullptr;
  std::int64_t stride = 0;
  float* scales = nullptr;
  std::int64_t scale_stride = 0;
  std::int64_t groups = 0;

  QuantizedRows from(std::int64_t row) const {
    return {q + row * stride, stride, scales + row * scale_stride, scale_stride, groups};
  }
};

inline constexpr int kHeadDimMax = 256;
inline constexpr int kQueriesMax = 64;  // heads that share a KV head

// One row's query heads of one KV head, attending to its first `keys` positions. Block i of its sequence lies at
// Attention::kv + table[i] * block_stride: keys [head_dim][16], then values [16][head_dim], all IEEE half precision.
struct AttentionRow {
  const float* q = nullptr;  // [queries][head_dim]
  float* out = nullptr;      // [queries][head_dim]
  const std::int32_t* table = nullptr;
  std::int32_t keys = 0;
};

// Rows that are computed together, at most kAttentionRows: where neighbours have a block in common, it is read once.
// Never changes a result.
inline constexpr int kAttentionRows = 8;
struct Attention {
  const AttentionRow* rows = nullptr;
  int row_count = 0;
  int queries = 0;
  int head_dim = 0;
  float scale = 0;
  const std::uint16_t* kv = nullptr;
  std::int64_t block_stride = 0;
};

// Part of a softmax over one chunk of the vocabulary: sum of exp(d), and sum of floor(exp(d) * 2^40), where
// d = (logit - maximum) / temperature.
struct ChunkSums {
  float sum = 0;
  std::uint64_t weight = 0;
};

struct KernelTable {
  int ways = 0;              // of PackedMatrix
  int activation_bytes = 0;  // of an element of QuantizedRows
  bool needs_sums = false;

  // y = x * r * weight, r = 1 / sqrt(mean(x^2) + epsilon). n is a multiple of 16.
  void (*rms_norm)(const float* x, const float* weight, std::int64_t n, float epsilon, float* y) = nullptr;
  // Rounds row `row`; n is a multiple of 16, the rest up to whole groups becomes zero. False for NaN or infinity.
  bool (*quantize)(const float* x, std::int64_t n, const QuantizedRows& out, std::int64_t row) = nullptr;
  // out[r * stride + row] = dot (or += dot) for the outputs of panels [panel_begin, panel_end).
  void (*matmul)(const PackedMatrix& w, std::int64_t panel_begin, std::int64_t panel_end, const QuantizedRows& x,
                 std::int64_t rows, float* out, std::int64_t stride, bool add) = nullptr;
  // x += y. n is a multiple of 16.
  void (*add)(float* x, const float* y, std::int64_t n) = nullptr;
  // The largest absolute value, as bits. n is a multiple of 16.
  std::uint32_t (*largest_bits)(const float* x, std::int64_t n) = nullptr;
  // Rotates the pairs (x[i], x[i + half]).
  void (*rope)(float* x, const float* cosines, const float* sines, std::int64_t half) = nullptr;
  // To half precision, to nearest, ties to even. n is a multiple of 16.
  void (*to_half)(const float* x, std::int64_t n, std::uint16_t* out) = nullptr;
  void (*attend)(const Attention& a) = nullptr;
  // out = gate / (1 + exp(-gate)) * up. n is a multiple of 16.
  void (*swiglu)(const float* gate, const float* up, std::int64_t n, float* out) = nullptr;
  // n is a multiple of 16, at most kVocabularyChunk.
  float (*maximum)(const float* x, std::int64_t n) = nullptr;
  ChunkSums (*chunk_sums)(const float* logits, std::int64_t n, float maximum, float temperature) = nullptr;
  void (*chunk_weights)(const float* logits, std::int64_t n, float maximum, float temperature,
                        std::uint64_t* weights) = nullptr;
};

// Activations of one byte (127 steps) and of two (32512).
inline constexpr float kOneByteLimit = 127.0f;
inline constexpr float kTwoByteLimit = 32512.0f;
inline constexpr float kSmallestAmax = 0x1p-100f;  // a group below becomes all zero

KernelTable scalar_kernels(bool two_bytes);
KernelTable avx2_kernels(bool two_bytes);
KernelTable avx_vnni_kernels(bool two_bytes);
KernelTable avx512_kernels(bool two_bytes);
KernelTable amx_kernels(bool two_bytes);
KernelTable neon_kernels(bool two_bytes);
KernelTable neon_dot_kernels(bool two_bytes);  // with the dot-product extension

enum class Isa;                                   // engine/engine.h
KernelTable kernels_of(Isa isa, bool two_bytes);  // one that supported_isas() lists

}  // namespace flotilla
