#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "model/gguf.h"

namespace flotilla {

// A block is the smallest piece that a type stores on its own: so many elements of one row in so many bytes.
struct GgufBlock {
  GgufType type;
  std::string_view name;
  std::uint32_t elements;
  std::uint32_t bytes;
  void (*dequantize)(const std::uint8_t* block, float* out);
};

// By the type's number in a file; nullptr when we don't read it.
const GgufBlock* find_gguf_block(std::uint32_t type);
// "F32, F16, ..." for messages.
std::string known_gguf_types();

}  // namespace flotilla
