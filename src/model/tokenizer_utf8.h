#pragma once

#include <cstddef>
#include <string_view>

namespace flotilla {

// Bytes of the character that `text` starts with: 1 to 4, or 0 when it starts with no whole valid character. Validity
// is that of Unicode 15, table 3-7: no surrogates, no overlong forms, nothing past U+10FFFF.
std::size_t utf8_character(std::string_view text);

// True when all of `text` is a valid character without its last bytes.
bool utf8_unfinished(std::string_view text);

// Bytes of the longest valid UTF-8 that `text` starts with.
std::size_t utf8_valid_prefix(std::string_view text);

}  // namespace flotilla
