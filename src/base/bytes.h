#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "base/status.h"

namespace flotilla {

static_assert(std::endian::native == std::endian::little, "formats are little-endian and are mapped as they lie");

using Bytes = std::vector<std::uint8_t>;
using ByteSpan = std::span<const std::uint8_t>;

inline ByteSpan as_bytes(std::string_view text) {
  return {reinterpret_cast<const std::uint8_t*>(text.data()), text.size()};
}
template <typename T>
  requires std::is_trivially_copyable_v<T>
ByteSpan as_bytes(std::span<const T> values) {
  return {reinterpret_cast<const std::uint8_t*>(values.data()), values.size_bytes()};
}
inline std::string_view as_text(ByteSpan bytes) { return {reinterpret_cast<const char*>(bytes.data()), bytes.size()}; }
inline Bytes to_bytes(std::string_view text) { return Bytes(text.begin(), text.end()); }

std::string hex(ByteSpan bytes);
Result<Bytes> from_hex(std::string_view text);
std::string base64(ByteSpan bytes);
Result<Bytes> from_base64(std::string_view text);

// Appends little-endian values to a buffer.
class ByteWriter {
 public:
  template <typename T>
    requires std::is_arithmetic_v<T>
  void put(T value) {
    const auto* bytes = reinterpret_cast<const std::uint8_t*>(&value);
    bytes_.insert(bytes_.end(), bytes, bytes + sizeof(T));
  }
  // LEB128: seven bits a byte, low ones first.
  void put_varint(std::uint64_t value);
  void put_bytes(ByteSpan bytes) { bytes_.insert(bytes_.end(), bytes.begin(), bytes.end()); }
  std::size_t size() const { return bytes_.size(); }
  Bytes take() && { return std::move(bytes_); }

 private:
  Bytes bytes_;
};

// Reads little-endian values; every read past the end is data_loss. Keeps a view: the bytes must outlive it.
class ByteReader {
 public:
  explicit ByteReader(ByteSpan bytes) : bytes_(bytes) {}

  template <typename T>
    requires std::is_arithmetic_v<T>
  Result<T> get() {
    FLOTILLA_ASSIGN_OR_RETURN(ByteSpan bytes, get_bytes(sizeof(T)));
    T value;
    std::memcpy(&value, bytes.data(), sizeof(T));
    return value;
  }
  // Rejects encodings longer than needed and values past 64 bits, so that each value has one encoding.
  Result<std::uint64_t> get_varint();
  Result<ByteSpan> get_bytes(std::uint64_t count);
  std::size_t position() const { return position_; }
  std::size_t remaining() const { return bytes_.size() - position_; }

 private:
  ByteSpan bytes_;
  std::size_t position_ = 0;
};

}  // namespace flotilla
