#pragma once

#include <array>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "base/status.h"

namespace flotilla {

// GPT-2's printable byte alphabet: bytes 33 to 126, 161 to 172 and 174 to 255 are the characters of the same number,
// the others, in order, those from U+0100 on.
std::string bytes_to_alphabet(std::string_view bytes);
// Back; invalid_argument for text with a character that is not in the alphabet.
Result<std::string> alphabet_to_bytes(std::string_view text);

// Byte pair merges by rank (Sennrich, Haddow, Birch 2016, on bytes as in GPT-2): of all neighbouring pairs, the one of
// lowest rank is merged first, the leftmost of equal ones, until none is left. Immutable and thread safe.
class Bpe {
 public:
  // `ids` gives the id of a token in the byte alphabet. invalid_argument for a merge whose parts or result are no
  // tokens, and for a pair that occurs twice.
  static Result<Bpe> create(const std::unordered_map<std::string, TokenId>& ids,
                            const std::vector<std::pair<std::string, std::string>>& merges);

  // Appends the ids of one word. A byte without a token is left out, as Hugging Face does without an unknown token; its
  // neighbours become neighbours. O(n log n) for a word of n bytes.
  void encode_word(std::string_view word, std::vector<TokenId>& out) const;

  // -1: the vocabulary has no token for this byte.
  TokenId byte_id(std::uint8_t byte) const { return byte_ids_[byte]; }

 private:
  struct Merge {
    std::int32_t rank;
    TokenId id;
  };
  static std::uint64_t pair_key(TokenId left, TokenId right) {
    return std::uint64_t{static_cast<std::uint32_t>(left)} << 32 | static_cast<std::uint32_t>(right);
  }

  std::array<TokenId, 256> byte_ids_{};
  std::unordered_map<std::uint64_t, Merge> merges_;
};

}  // namespace flotilla
