#include "model/tokenizer.h"

#include <algorithm>
#include <array>
#include <unordered_map>
#include <utility>

#include <fmt/format.h>

#include "model/bpe.h"
#include "model/nfc.h"
#include "model/pre_tokenizer.h"
#include "model/tokenizer_utf8.h"

namespace flotilla {
namespace {

// Finds the leftmost, of those the longest, of a set of texts.
class WholeTokens {
 public:
  struct Match {
    std::size_t position;
    std::size_t length;
    TokenId id;
  };

  void add(std::string_view text, TokenId id) {
    auto& bucket = by_first_byte_[static_cast<std::uint8_t>(text[0])];
    const auto longer = [](const Entry& a, const Entry& b) { return a.text.size() > b.text.size(); };
    const Entry entry{std::string(text), id};
    bucket.insert(std::upper_bound(bucket.begin(), bucket.end(), entry, longer), entry);
  }

  std::optional<Match> next(std::string_view text) const {
    for (std::size_t i = 0; i < text.size(); ++i) {
      for (const Entry& entry : by_first_byte_[static_cast<std::uint8_t>(text[i])]) {
        if (text.substr(i).starts_with(entry.text)) return Match{i, entry.text.size(), entry.id};
      }
    }
    return std::nullopt;
  }

 private:
  struct Entry {
    std::string text;
    TokenId id;
  };
  std::array<std::vector<Entry>, 256> by_first_byte_;
};

Sha256Digest digest_of(const TokenizerSpec& spec) {
  Sha256 hash;
  hash.update_framed("flotilla tokenizer 1");
  hash.update_framed(spec.pre_tokenizer);
  hash.update_value(std::uint64_t{spec.tokens.size()});
  for (const std::string& token : spec.tokens) hash.update_framed(token);
  hash.update_value(std::uint64_t{spec.merges.size()});
  for (const auto& [left, right] : spec.merges) {
    hash.update_framed(left);
    hash.update_framed(right);
  }
  for (const std::vector<TokenId>* ids : {&spec.special, &spec.added}) {
    std::vector<TokenId> sorted = *ids;
    std::sort(sorted.begin(), sorted.end());
    hash.update_value(std::uint64_t{sorted.size()});
    for (const TokenId id : sorted) hash.update_value(id);
  }
  return hash.finish();
}

class BpeTokenizer : public Tokenizer {
 public:
  BpeTokenizer(TokenizerSpec spec, std::shared_ptr<const PreTokenizer> pre_tokenizer)
      : spec_(std::move(spec)), pre_tokenizer_(std::move(pre_tokenizer)), digest_(digest_of(spec_)) {}

  Status prepare() {
    const std::size_t count = spec_.tokens.size();
    special_.assign(count, false);
    std::vector<bool> whole(count, false);
    FLOTILLA_RETURN_IF_ERROR(mark(spec_.special, "special", whole));
    FLOTILLA_RETURN_IF_ERROR(mark(spec_.added, "added", whole));
    for (const TokenId id : spec_.special) special_[id] = true;
    for (const auto& [name, id] : {std::pair{"bos", spec_.bos}, {"eos", spec_.eos}, {"pad", spec_.pad}}) {
      if (id < -1 || id >= vocabulary()) {
        return invalid_argument(fmt::format("{} is token {}; the vocabulary has {}", name, id, count));
      }
    }
    if (utf8_valid_prefix(spec_.chat_template) != spec_.chat_template.size()) {
      return invalid_argument("the chat template is not UTF-8");
    }

    ids_.reserve(count);
    bytes_.resize(count);
    for (std::size_t i = 0; i < count; ++i) {
      const std::string& token = spec_.tokens[i];
      const auto id = static_cast<TokenId>(i);
      if (token.empty()) return invalid_argument(fmt::format("token {} is empty", i));
      if (utf8_valid_prefix(token) != token.size()) return invalid_argument(fmt::format("token {} is not UTF-8", i));
      const auto [other, added] = ids_.emplace(token, id);
      if (!added) return invalid_argument(fmt::format("tokens {} and {} are both \"{}\"", other->second, i, token));
      if (whole[i]) {
        bytes_[i] = token;
        every_whole_token_.add(token, id);
        if (!special_[i]) added_tokens_.add(token, id);
      } else {
        FLOTILLA_ASSIGN_OR_RETURN(bytes_[i],
                                  alphabet_to_bytes(token).with_context(fmt::format("token {} \"{}\"", i, token)));
      }
    }
    FLOTILLA_ASSIGN_OR_RETURN(bpe_, Bpe::create(ids_, spec_.merges));
    return ok_status();
  }

  const TokenizerSpec& spec() const override { return spec_; }
  const Sha256Digest& digest() const override { return digest_; }

  std::vector<TokenId> encode(std::string_view text, bool parse_special) const override {
    const WholeTokens& whole = parse_special ? every_whole_token_ : added_tokens_;
    std::vector<TokenId> ids;
    while (!text.empty()) {
      const auto match = whole.next(text);
      encode_plain(text.substr(0, match ? match->position : text.size()), ids);
      if (!match) break;
      ids.push_back(match->id);
      text.remove_prefix(match->position + match->length);
    }
    return ids;
  }

  std::string_view token_bytes(TokenId id, bool keep_special) const override {
    if (id < 0 || id >= vocabulary() || (special_[id] && !keep_special)) return {};
    return bytes_[id];
  }

  std::optional<TokenId> find(std::string_view token) const override {
    const auto found = ids_.find(std::string(token));
    return found == ids_.end() ? std::nullopt : std::optional(found->second);
  }

  bool is_special(TokenId id) const override { return id >= 0 && id < vocabulary() && special_[id]; }

 private:
  // Text between whole tokens.
  void encode_plain(std::string_view text, std::vector<TokenId>& ids) const {
    const std::string normal = pre_tokenizer_->normalizes() ? to_nfc(text) : std::string();
    if (pre_tokenizer_->normalizes()) text = normal;
    for (const std::string_view word : pre_tokenizer_->split(text)) bpe_.encode_word(word, ids);
  }

  Status mark(const std::vector<TokenId>& ids, std::string_view what, std::vector<bool>& marked) const {
    for (const TokenId id : ids) {
      if (id < 0 || id >= vocabulary()) {
        return invalid_argument(fmt::format("{} token {}: the vocabulary has {}", what, id, vocabulary()));
      }
      if (marked[id]) return invalid_argument(fmt::format("{} token {} is listed twice", what, id));
      marked[id] = true;
    }
    return ok_status();
  }

  TokenizerSpec spec_;
  std::shared_ptr<const PreTokenizer> pre_tokenizer_;
  Sha256Digest digest_;
  std::unordered_map<std::string, TokenId> ids_;
  std::vector<std::string> bytes_;
  std::vector<bool> special_;
  WholeTokens every_whole_token_;
  WholeTokens added_tokens_;  // not the special ones
  Bpe bpe_;
};

}  // namespace

Result<std::shared_ptr<const Tokenizer>> Tokenizer::create(TokenizerSpec spec) {
  constexpr std::size_t kMaxTokens = std::size_t{1} << 24;
  if (spec.tokens.empty() || spec.tokens.size() > kMaxTokens) {
    return invalid_argument(
        fmt::format("a vocabulary of {} tokens; 1 to {} are possible", spec.tokens.size(), kMaxTokens));
  }
  FLOTILLA_ASSIGN_OR_RETURN(auto pre_tokenizer, PreTokenizer::create(spec.pre_tokenizer));
  auto tokenizer = std::make_shared<BpeTokenizer>(std::move(spec), std::move(pre_tokenizer));
  FLOTILLA_RETURN_IF_ERROR(tokenizer->prepare());
  return std::shared_ptr<const Tokenizer>(std::move(tokenizer));
}

std::string Tokenizer::decode(std::span<const TokenId> ids, bool keep_special) const {
  std::string text;
  for (const TokenId id : ids) text += token_bytes(id, keep_special);
  return text;
}

}  // namespace flotilla
