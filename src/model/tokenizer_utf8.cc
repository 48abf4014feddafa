#include "model/tokenizer_utf8.h"

#include <cstdint>

namespace flotilla {
namespace {

// Bytes that a character with this first byte has; 0 when none starts so.
std::size_t announced_length(std::uint8_t first) {
  if (first < 0x80) return 1;
  if (first < 0xC2) return 0;
  if (first < 0xE0) return 2;
  if (first < 0xF0) return 3;
  return first < 0xF5 ? 4 : 0;
}

bool fits(std::uint8_t first, std::size_t position, std::uint8_t byte) {
  std::uint8_t low = 0x80, high = 0xBF;
  if (position == 1) {
    if (first == 0xE0) low = 0xA0;
    if (first == 0xED) high = 0x9F;
    if (first == 0xF0) low = 0x90;
    if (first == 0xF4) high = 0x8F;
  }
  return low <= byte && byte <= high;
}

// How many of the first `length` bytes of `text` fit a character; 0 when its first byte starts none.
std::size_t fitting_bytes(std::string_view text, std::size_t length) {
  const auto first = static_cast<std::uint8_t>(text[0]);
  std::size_t count = 1;
  while (count < length && count < text.size() && fits(first, count, static_cast<std::uint8_t>(text[count]))) ++count;
  return count;
}

}  // namespace

std::size_t utf8_character(std::string_view text) {
  if (text.empty()) return 0;
  const std::size_t length = announced_length(static_cast<std::uint8_t>(text[0]));
  return length > 0 && fitting_bytes(text, length) == length ? length : 0;
}

bool utf8_unfinished(std::string_view text) {
  if (text.empty()) return false;
  const std::size_t length = announced_length(static_cast<std::uint8_t>(text[0]));
  return text.size() < length && fitting_bytes(text, length) == text.size();
}

std::size_t utf8_valid_prefix(std::string_view text) {
  std::size_t end = 0;
  while (end < text.size()) {
    const std::size_t length = utf8_character(text.substr(end));
    if (length == 0) break;
    end += length;
  }
  return end;
}

}  // namespace flotilla
