#include "cli/terminal_text.h"

#include "model/tokenizer_utf8.h"

namespace flotilla {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

bool is_control(std::string_view character) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(character[i]); };
  if (character.size() == 1) return (byte(0) < 0x20 && byte(0) != '\n' && byte(0) != '\t') || byte(0) == 0x7F;
  return character.size() == 2 && byte(0) == 0xC2 && byte(1) < 0xA0;  // U+0080 to U+009F
}

}  // namespace

std::string TerminalText::push(std::string_view piece) {
  pending_ += piece;
  std::string shown;
  std::string_view rest = pending_;
  while (!rest.empty() && !utf8_unfinished(rest)) {
    const std::size_t size = utf8_character(rest);
    const std::string_view character = rest.substr(0, size);
    shown += size == 0 || is_control(character) ? kReplacement : character;
    rest.remove_prefix(size == 0 ? 1 : size);
  }
  pending_ = std::string(rest);
  return shown;
}

std::string TerminalText::finish() {
  const bool cut = !pending_.empty();
  pending_.clear();
  return std::string(cut ? kReplacement : "");
}

}  // namespace flotilla
