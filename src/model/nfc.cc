#include "model/nfc.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <vector>

#include <utf8proc.h>

#include "base/status.h"
#include "model/tokenizer_utf8.h"

namespace flotilla {
namespace {

// Characters since Unicode 9 that combine or decompose, up to Unicode 17. Whole gaps of Unicode 9 are one range.
struct Range {
  std::int32_t first, last;
};
constexpr Range kNewer[] = {
    {0x5C8, 0x5C9},     {0x7FD, 0x7FD},     {0x897, 0x89F},     {0x8CA, 0x8D3},     {0x9FE, 0x9FE},
    {0xC3C, 0xC3C},     {0xD3B, 0xD3C},     {0xEBA, 0xEBA},     {0x1715, 0x1715},   {0x1ABF, 0x1AF0},
    {0x1DF6, 0x1DFA},   {0xA82C, 0xA82C},   {0x105C0, 0x105FF}, {0x10D24, 0x10D6D}, {0x10EAB, 0x10F85},
    {0x11070, 0x11070}, {0x1133B, 0x1133B}, {0x11380, 0x113FF}, {0x1145E, 0x1145E}, {0x11839, 0x1183A},
    {0x11900, 0x11A99}, {0x11D42, 0x11F42}, {0x16100, 0x1613F}, {0x16D40, 0x16D7F}, {0x16FF0, 0x16FF1},
    {0x1D127, 0x1D128}, {0x1D250, 0x1D281}, {0x1E08F, 0x1E6F5},
};

// True for characters that nothing combines with or is reordered across.
bool stands_apart(std::int32_t character) {
  // Begins the range of final consonants in the formula for Hangul and is none itself; utf8proc takes it for one that
  // composes to nothing, and so drops it.
  if (character == 0x11A7) return true;
  const auto* range = std::lower_bound(std::begin(kNewer), std::end(kNewer), character,
                                       [](const Range& r, std::int32_t c) { return r.last < c; });
  return range != std::end(kNewer) && range->first <= character;
}

// What can be reordered and combined together, decomposed. utf8proc_decompose would do the same, but takes quadratic
// time for a long run of marks.
class Composer {
 public:
  explicit Composer(std::string& out) : out_(out) {}

  void push(std::int32_t character) {
    utf8proc_int32_t parts[kPartsMax];
    int boundary = 0;
    const auto count = utf8proc_decompose_char(
        character, parts, kPartsMax, static_cast<utf8proc_option_t>(UTF8PROC_DECOMPOSE | UTF8PROC_STABLE), &boundary);
    FLOTILLA_CHECK(0 < count && count <= kPartsMax);
    text_.insert(text_.end(), parts, parts + count);
  }

  void flush() {
    const auto is_starter = [](std::int32_t c) { return combining_class(c) == 0; };
    for (auto run = text_.begin(); run != text_.end();) {
      run = std::find_if_not(run, text_.end(), is_starter);
      const auto end = std::find_if(run, text_.end(), is_starter);
      std::stable_sort(run, end, [](auto a, auto b) { return combining_class(a) < combining_class(b); });
      run = end;
    }
    const auto length = utf8proc_normalize_utf32(text_.data(), static_cast<utf8proc_ssize_t>(text_.size()),
                                                 static_cast<utf8proc_option_t>(UTF8PROC_COMPOSE | UTF8PROC_STABLE));
    FLOTILLA_CHECK(length >= 0);
    for (utf8proc_ssize_t i = 0; i < length; ++i) {
      utf8proc_uint8_t bytes[4];
      const auto size = utf8proc_encode_char(text_[static_cast<std::size_t>(i)], bytes);
      out_.append(reinterpret_cast<const char*>(bytes), static_cast<std::size_t>(size));
    }
    text_.clear();
  }

 private:
  static constexpr int kPartsMax = 8;  // Unicode promises at most 4 (a canonical decomposition in full)
  static int combining_class(std::int32_t character) { return utf8proc_get_property(character)->combining_class; }

  std::string& out_;
  std::vector<utf8proc_int32_t> text_;
};

}  // namespace

std::string to_nfc(std::string_view text) {
  // All characters before U+0300, whose first byte is CC, are their own form C and combine with nothing before them.
  const auto plain = [](char c) { return static_cast<std::uint8_t>(c) < 0xCC; };
  if (std::all_of(text.begin(), text.end(), plain)) return std::string(text);
  std::string out;
  out.reserve(text.size());
  Composer composer(out);
  while (!text.empty()) {
    const std::size_t valid = utf8_character(text);
    const std::string_view bytes = text.substr(0, std::max<std::size_t>(valid, 1));
    utf8proc_int32_t character = -1;
    if (valid > 0) {
      utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(bytes.data()),
                       static_cast<utf8proc_ssize_t>(bytes.size()), &character);
    }
    if (character < 0 || stands_apart(character)) {
      composer.flush();
      out += bytes;
    } else {
      composer.push(character);
    }
    text.remove_prefix(bytes.size());
  }
  composer.flush();
  return out;
}

}  // namespace flotilla
