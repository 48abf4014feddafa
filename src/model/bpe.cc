#include "model/bpe.h"

#include <cstdint>
#include <queue>

#include <fmt/format.h>

#include "model/tokenizer_utf8.h"

namespace flotilla {
namespace {

struct Alphabet {
  std::array<std::uint16_t, 256> character{};
  std::array<std::int16_t, 0x144> byte{};

  Alphabet() {
    byte.fill(-1);
    std::uint16_t next = 0x100;
    for (int b = 0; b < 256; ++b) {
      const bool printable = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
      character[b] = printable ? static_cast<std::uint16_t>(b) : next++;
      byte[character[b]] = static_cast<std::int16_t>(b);
    }
  }
};

const Alphabet& alphabet() {
  static const Alphabet instance;
  return instance;
}

// A node of the word's list of symbols. A merged-away right part has id -1.
struct Symbol {
  TokenId id;
  std::int32_t previous;
  std::int32_t next;
};

struct Candidate {
  std::int32_t rank;
  std::int32_t position;  // of the left part
  TokenId merged;
  TokenId left, right;  // as they were when this was found; stale when they changed
  bool operator>(const Candidate& other) const {
    return rank != other.rank ? rank > other.rank : position > other.position;
  }
};

}  // namespace

std::string bytes_to_alphabet(std::string_view bytes) {
  std::string text;
  for (const char c : bytes) {
    const std::uint16_t character = alphabet().character[static_cast<std::uint8_t>(c)];
    if (character < 0x80) {
      text += static_cast<char>(character);
    } else {
      text += static_cast<char>(0xC0 | character >> 6);
      text += static_cast<char>(0x80 | (character & 0x3F));
    }
  }
  return text;
}

Result<std::string> alphabet_to_bytes(std::string_view text) {
  std::string bytes;
  while (!text.empty()) {
    const std::size_t length = utf8_character(text);
    unsigned character = static_cast<std::uint8_t>(text[0]);
    if (length == 2) character = (character & 0x1F) << 6 | (static_cast<std::uint8_t>(text[1]) & 0x3F);
    if (length == 0 || length > 2 || character >= alphabet().byte.size() || alphabet().byte[character] < 0) {
      return invalid_argument("a character is not in GPT-2's byte alphabet");
    }
    bytes += static_cast<char>(alphabet().byte[character]);
    text.remove_prefix(length);
  }
  return bytes;
}

Result<Bpe> Bpe::create(const std::unordered_map<std::string, TokenId>& ids,
                        const std::vector<std::pair<std::string, std::string>>& merges) {
  Bpe bpe;
  for (int b = 0; b < 256; ++b) {
    const auto found = ids.find(bytes_to_alphabet(std::string(1, static_cast<char>(b))));
    bpe.byte_ids_[b] = found == ids.end() ? -1 : found->second;
  }
  bpe.merges_.reserve(merges.size());
  for (std::size_t rank = 0; rank < merges.size(); ++rank) {
    const auto& [left, right] = merges[rank];
    TokenId parts[3];
    const std::string names[3] = {left, right, left + right};
    for (int i = 0; i < 3; ++i) {
      const auto found = ids.find(names[i]);
      if (found == ids.end()) {
        return invalid_argument(fmt::format("merge {}: \"{}\" is not in the vocabulary", rank, names[i]));
      }
      parts[i] = found->second;
    }
    const Merge merge{static_cast<std::int32_t>(rank), parts[2]};
    if (!bpe.merges_.emplace(pair_key(parts[0], parts[1]), merge).second) {
      return invalid_argument(fmt::format("merge {}: the pair \"{}\" \"{}\" occurs twice", rank, left, right));
    }
  }
  return bpe;
}

void Bpe::encode_word(std::string_view word, std::vector<TokenId>& out) const {
  std::vector<Symbol> symbols;
  symbols.reserve(word.size());
  for (const char c : word) {
    const TokenId id = byte_ids_[static_cast<std::uint8_t>(c)];
    const auto position = static_cast<std::int32_t>(symbols.size());
    if (id >= 0) symbols.push_back({id, position - 1, position + 1});
  }
  const auto count = static_cast<std::int32_t>(symbols.size());

  std::vector<Candidate> found;
  const auto candidate = [&](std::int32_t position) -> const Merge* {
    const std::int32_t next = symbols[position].next;
    if (next >= count) return nullptr;
    const auto merge = merges_.find(pair_key(symbols[position].id, symbols[next].id));
    return merge == merges_.end() ? nullptr : &merge->second;
  };
  const auto make = [&](std::int32_t position, const Merge& merge) {
    return Candidate{merge.rank, position, merge.id, symbols[position].id, symbols[symbols[position].next].id};
  };
  for (std::int32_t i = 0; i < count; ++i) {
    if (const Merge* merge = candidate(i)) found.push_back(make(i, *merge));
  }
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> queue(std::greater<>{}, std::move(found));
  const auto offer = [&](std::int32_t position) {
    if (position < 0) return;
    if (const Merge* merge = candidate(position)) queue.push(make(position, *merge));
  };

  while (!queue.empty()) {
    const Candidate best = queue.top();
    queue.pop();
    Symbol& left = symbols[best.position];
    if (left.id != best.left || left.next >= count || symbols[left.next].id != best.right) continue;
    Symbol& right = symbols[left.next];
    left.id = best.merged;
    left.next = right.next;
    right.id = -1;
    if (left.next < count) symbols[left.next].previous = best.position;
    offer(left.previous);
    offer(best.position);
  }
  // The first symbol is never a right part.
  for (std::int32_t i = 0; i < count; i = symbols[i].next) out.push_back(symbols[i].id);
}

}  // namespace flotilla
