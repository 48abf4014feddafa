#include "base/bytes.h"

#include <fmt/format.h>
#include <openssl/evp.h>

namespace flotilla {

std::string hex(ByteSpan bytes) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  text.reserve(bytes.size() * 2);
  for (std::uint8_t byte : bytes) {
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

Result<Bytes> from_hex(std::string_view text) {
  if (text.size() % 2 != 0) return data_loss(fmt::format("hex text has an odd length, {}", text.size()));
  Bytes bytes(text.size() / 2);
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    int digit;
    if (c >= '0' && c <= '9') {
      digit = c - '0';
    } else if (c >= 'a' && c <= 'f') {
      digit = c - 'a' + 10;
    } else {
      return data_loss(
          fmt::format("hex text has a byte 0x{:02x} at {}; expected 0-9 or a-f", static_cast<unsigned char>(c), i));
    }
    bytes[i / 2] = static_cast<std::uint8_t>(bytes[i / 2] << 4 | digit);
  }
  return bytes;
}

std::string base64(ByteSpan bytes) {
  std::string text((bytes.size() + 2) / 3 * 4 + 1, '\0');
  const int length =
      EVP_EncodeBlock(reinterpret_cast<unsigned char*>(text.data()), bytes.data(), static_cast<int>(bytes.size()));
  text.resize(static_cast<std::size_t>(length));
  return text;
}

Result<Bytes> from_base64(std::string_view text) {
  if (text.size() % 4 != 0)
    return data_loss(fmt::format("base64 text has {} characters; expected a multiple of 4", text.size()));
  Bytes bytes(text.size() / 4 * 3);
  const int length =
      EVP_DecodeBlock(bytes.data(), reinterpret_cast<const unsigned char*>(text.data()), static_cast<int>(text.size()));
  std::size_t padding = 0;
  while (padding < 2 && padding < text.size() && text[text.size() - 1 - padding] == '=') ++padding;
  if (length < 0) return data_loss("not base64");
  bytes.resize(static_cast<std::size_t>(length) - padding);
  // EVP_DecodeBlock skips white space and ignores stray bits; one value must have one encoding.
  if (base64(bytes) != text) return data_loss("not canonical base64");
  return bytes;
}

void ByteWriter::put_varint(std::uint64_t value) {
  while (value >= 0x80) {
    bytes_.push_back(static_cast<std::uint8_t>(value) | 0x80);
    value >>= 7;
  }
  bytes_.push_back(static_cast<std::uint8_t>(value));
}

Result<std::uint64_t> ByteReader::get_varint() {
  std::uint64_t value = 0;
  for (int shift = 0; shift < 64; shift += 7) {
    FLOTILLA_ASSIGN_OR_RETURN(const auto byte, get<std::uint8_t>());
    if (shift == 63 && byte > 1) break;
    value |= std::uint64_t{byte & 0x7fu} << shift;
    if (byte < 0x80) {
      if (byte == 0 && shift > 0)
        return data_loss(fmt::format("varint before byte {} is longer than needed", position_));
      return value;
    }
  }
  return data_loss(fmt::format("varint before byte {} does not fit 64 bits", position_));
}

Result<ByteSpan> ByteReader::get_bytes(std::uint64_t count) {
  if (count > remaining()) {
    return data_loss(fmt::format("need {} bytes at offset {}, but only {} are left", count, position_, remaining()));
  }
  const ByteSpan result = bytes_.subspan(position_, count);
  position_ += count;
  return result;
}

}  // namespace flotilla
