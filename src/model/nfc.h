#pragma once

#include <string>
#include <string_view>

namespace flotilla {

// Unicode's normalization form C of UTF-8 text. The tables are Unicode 9's, as in PyPI tokenizers 0.23.3, whatever the
// installed utf8proc knows: newer characters stay as they are, and nothing combines or is reordered across them. So do
// bytes that are not UTF-8. O(n log n).
std::string to_nfc(std::string_view text);

}  // namespace flotilla
