#include "model/gguf_blocks.h"

#include <cstring>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "model/grid.h"
#include "model/half.h"

namespace flotilla {
namespace {

constexpr int kQuantBlock = 32;  // elements in a block of the quantised types

std::uint16_t load_u16(const std::uint8_t* bytes) {
  std::uint16_t value;
  std::memcpy(&value, bytes, sizeof(value));
  return value;
}

void from_f32(const std::uint8_t* block, float* out) { std::memcpy(out, block, sizeof(float)); }
void from_f16(const std::uint8_t* block, float* out) { *out = half_to_float(load_u16(block)); }
void from_bf16(const std::uint8_t* block, float* out) { *out = bf16_to_float(load_u16(block)); }

// Scale; 32 nibbles less 8: the low ones are the first half of the block, the high ones the second.
void from_q4_0(const std::uint8_t* block, float* out) {
  const float scale = half_to_float(load_u16(block));
  for (int i = 0; i < kQuantBlock / 2; ++i) {
    out[i] = scale * static_cast<float>((block[2 + i] & 15) - 8);
    out[i + kQuantBlock / 2] = scale * static_cast<float>((block[2 + i] >> 4) - 8);
  }
}

// Scale and minimum; nibbles as in Q4_0, without the 8.
void from_q4_1(const std::uint8_t* block, float* out) {
  const float scale = half_to_float(load_u16(block));
  const float minimum = half_to_float(load_u16(block + 2));
  for (int i = 0; i < kQuantBlock / 2; ++i) {
    out[i] = scale * static_cast<float>(block[4 + i] & 15) + minimum;
    out[i + kQuantBlock / 2] = scale * static_cast<float>(block[4 + i] >> 4) + minimum;
  }
}

// Scale and 32 signed bytes.
void from_q8_0(const std::uint8_t* block, float* out) {
  const float scale = half_to_float(load_u16(block));
  for (int i = 0; i < kQuantBlock; ++i) out[i] = static_cast<float>(static_cast<std::int8_t>(block[2 + i])) * scale;
}

constexpr GgufBlock kBlocks[] = {
    {GgufType::kF32, "F32", 1, 4, from_f32},
    {GgufType::kF16, "F16", 1, 2, from_f16},
    {GgufType::kBF16, "BF16", 1, 2, from_bf16},
    {GgufType::kQ4_0, "Q4_0", kQuantBlock, 2 + 16, from_q4_0},
    {GgufType::kQ4_1, "Q4_1", kQuantBlock, 2 + 2 + 16, from_q4_1},
    {GgufType::kQ8_0, "Q8_0", kQuantBlock, 2 + 32, from_q8_0},
};

}  // namespace

const GgufBlock* find_gguf_block(std::uint32_t type) {
  for (const GgufBlock& block : kBlocks) {
    if (static_cast<std::uint32_t>(block.type) == type) return &block;
  }
  return nullptr;
}

std::string known_gguf_types() {
  std::vector<std::string_view> names;
  for (const GgufBlock& block : kBlocks) names.push_back(block.name);
  return fmt::format("{}", fmt::join(names, ", "));
}

void dequantize(const GgufTensor& tensor, float* out) {
  const GgufBlock* block = find_gguf_block(static_cast<std::uint32_t>(tensor.type));
  const std::uint8_t* bytes = tensor.bytes.data();
  for (std::int64_t i = 0; i < tensor.rows * tensor.cols; i += block->elements, bytes += block->bytes) {
    block->dequantize(bytes, out + i);
  }
}

}  // namespace flotilla
