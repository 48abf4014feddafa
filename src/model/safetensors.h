#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "base/files.h"
#include "base/status.h"

namespace flotilla {

// Element types of safetensors files.
enum class DType { kF64, kF32, kF16, kBF16, kI64, kI32, kI16, kI8, kU64, kU32, kU16, kU8, kBool };
std::string_view dtype_name(DType dtype);  // "BF16"
std::optional<DType> dtype_from_name(std::string_view name);
std::int64_t dtype_size(DType dtype);  // bytes an element

using TensorShape = std::vector<std::int64_t>;

// One tensor of a file: row-major, little-endian, not necessarily aligned to its element.
struct TensorView {
  std::string name;
  DType dtype = DType::kF32;
  TensorShape shape;
  ByteSpan bytes;  // product of shape times dtype_size

  std::int64_t elements() const { return static_cast<std::int64_t>(bytes.size()) / dtype_size(dtype); }
  // The elements, copied. sizeof(T) must be dtype_size(dtype).
  template <typename T>
  std::vector<T> copy() const {
    FLOTILLA_CHECK(static_cast<std::int64_t>(sizeof(T)) == dtype_size(dtype));
    std::vector<T> values(bytes.size() / sizeof(T));
    if (!values.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
  }
};

using SafetensorsMetadata = std::map<std::string, std::string>;

// A safetensors file: eight bytes with the length of the header, the header as JSON, then the data. Reading is strict:
// the tensors cover the data without hole, overlap or rest, every size fits its shape, no name occurs twice, every
// metadata value is a string. Anything else is data_loss that names the tensor. Immutable; thread safe.
class SafetensorsFile {
 public:
  // Keeps a view: the bytes must outlive the object.
  static Result<SafetensorsFile> parse(ByteSpan bytes);
  // Reads the file: what is done to it afterwards is not seen. Errors name the path; unavailable when it changed
  // meanwhile.
  static Result<SafetensorsFile> open(const std::filesystem::path& path);

  const SafetensorsMetadata& metadata() const { return metadata_; }
  // In the order of their data.
  const std::vector<TensorView>& tensors() const { return tensors_; }
  // nullptr when there is none of this name.
  const TensorView* find(std::string_view name) const;
  // data_loss that says what was found when the tensor is missing or of another type or shape.
  Result<TensorView> expect(std::string_view name, DType dtype, const TensorShape& shape) const;

 private:
  SafetensorsMetadata metadata_;
  std::vector<TensorView> tensors_;
  std::map<std::string, std::size_t, std::less<>> index_;
  std::shared_ptr<const Bytes> contents_;  // of a file that was opened
};

// A tensor to be written; `bytes` must live until the call returns.
struct TensorToWrite {
  std::string name;
  DType dtype = DType::kF32;
  TensorShape shape;
  ByteSpan bytes;
};

// The same input gives the same bytes. Tensors with wider elements come first, otherwise in the order given, so that
// every tensor is aligned to its element. invalid_argument for a name that occurs twice or is reserved, text that is
// not UTF-8, or bytes that do not fit the shape.
Result<Bytes> write_safetensors(std::span<const TensorToWrite> tensors, const SafetensorsMetadata& metadata = {});
// To a file, in place of the old one only when whole; the data goes to the file as it lies, without a copy in memory.
Status write_safetensors_file(const std::filesystem::path& path, std::span<const TensorToWrite> tensors,
                              const SafetensorsMetadata& metadata = {});

}  // namespace flotilla
