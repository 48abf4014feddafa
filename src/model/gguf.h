#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/bytes.h"
#include "base/files.h"
#include "base/status.h"

namespace flotilla {

// Element types of GGUF tensors that we read, with their numbers in the file.
enum class GgufType : std::uint32_t { kF32 = 0, kF16 = 1, kQ4_0 = 2, kQ4_1 = 3, kQ8_0 = 8, kBF16 = 30 };

struct GgufTensor {
  std::string_view name;
  GgufType type = GgufType::kF32;
  std::int64_t rows = 1;  // product of all dimensions but the fastest
  std::int64_t cols = 0;  // the fastest dimension; a multiple of the type's block
  int dimensions = 0;     // as the file states: 1 for a vector
  ByteSpan bytes;
};

// Writes the rows * cols elements of a tensor as floats. Formulas: ggml's dequantize_row_* as PyPI `gguf` computes
// them, in fp32 without fused operations.
void dequantize(const GgufTensor& tensor, float* out);

// A metadata value. Integers and booleans in arrays are widened to int64, floats to double.
using GgufValue = std::variant<std::uint64_t, std::int64_t, double, bool, std::string_view,
                               std::vector<std::string_view>, std::vector<std::int64_t>, std::vector<double>>;

// A GGUF file, version 2 or 3, little-endian (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md). Reading is
// strict: counts, lengths, types, alignment and offsets are checked before they are used, names are unique, strings are
// UTF-8, and the tensors cover the data section in some order with nothing but padding between them. Anything else is
// data_loss that names the key or tensor; a version, element type or nested array that we don't read is
// invalid_argument. Immutable; thread safe.
class GgufFile {
 public:
  // Keeps a view: the bytes must outlive the object.
  static Result<GgufFile> parse(ByteSpan bytes);
  // Reads the file: what is done to it afterwards is not seen. Errors name the path; unavailable when it changed
  // meanwhile.
  static Result<GgufFile> open(const std::filesystem::path& path);

  const std::map<std::string_view, GgufValue>& metadata() const { return metadata_; }
  // In the order of the file's list.
  const std::vector<GgufTensor>& tensors() const { return tensors_; }

 private:
  friend class GgufParser;
  std::map<std::string_view, GgufValue> metadata_;
  std::vector<GgufTensor> tensors_;
  std::shared_ptr<const Bytes> contents_;  // of a file that was opened
};

}  // namespace flotilla
