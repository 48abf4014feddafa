#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/bytes.h"

namespace flotilla {

// A SHA-256 value: names objects and states wherever a stranger might lie.
struct Sha256Digest {
  std::array<std::uint8_t, 32> bytes{};
  auto operator<=>(const Sha256Digest&) const = default;
  std::string to_hex() const { return hex(bytes); }
  static Result<Sha256Digest> from_hex(std::string_view text);
};

Sha256Digest sha256(ByteSpan bytes);
inline Sha256Digest sha256(std::string_view text) { return sha256(as_bytes(text)); }

// SHA-256 of a stream of pieces. Not thread safe.
class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(const Sha256&) = delete;
  Sha256& operator=(const Sha256&) = delete;
  void update(ByteSpan bytes);
  // Length first, so that ("ab","c") and ("a","bc") differ.
  void update_framed(ByteSpan bytes);
  void update_framed(std::string_view text) { update_framed(as_bytes(text)); }
  template <typename T>
    requires std::is_arithmetic_v<T>
  void update_value(T value) {
    update({reinterpret_cast<const std::uint8_t*>(&value), sizeof(T)});
  }
  Sha256Digest finish();

 private:
  void* context_;
};

// XXH3, 64 bits: fast, for tables and checks that need no secrecy.
std::uint64_t xxh3_64(ByteSpan bytes, std::uint64_t seed = 0);

}  // namespace flotilla
