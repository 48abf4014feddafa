#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/hashing.h"
#include "base/ids.h"
#include "base/status.h"

namespace flotilla {

// What a byte-level BPE tokenizer consists of; read from GGUF metadata or tokenizer.json.
struct TokenizerSpec {
  // By id, in GPT-2's printable byte alphabet; special and added tokens as the text that they match.
  std::vector<std::string> tokens;
  std::vector<std::pair<std::string, std::string>> merges;  // by rank
  std::vector<TokenId> special;          // control tokens: matched whole in text, hidden when decoded
  std::vector<TokenId> added;            // other added tokens: matched whole, kept when decoded
  std::string pre_tokenizer = "smollm";  // names a pattern that the tokenizer knows
  TokenId bos = -1, eos = -1, pad = -1;  // -1: none
  std::string chat_template;             // Jinja text as the model ships it; kept, compared, not run
};

// Text <-> ids. Immutable and thread safe after creation.
class Tokenizer {
 public:
  // invalid_argument names the token, merge or field: empty or repeated tokens, tokens outside the byte alphabet,
  // merges of what is no token, ids outside the vocabulary, an unknown pre-tokenizer.
  static Result<std::shared_ptr<const Tokenizer>> create(TokenizerSpec spec);
  virtual ~Tokenizer() = default;

  virtual const TokenizerSpec& spec() const = 0;
  std::int32_t vocabulary() const { return static_cast<std::int32_t>(spec().tokens.size()); }

  // Any bytes are accepted: what is not valid UTF-8 becomes words of its own (pre_tokenizer.h), so decode(encode(s)) ==
  // s for text without special tokens, or its form C where the pre-tokenizer asks for that (Qwen2). A byte for which
  // the vocabulary has no token is left out, as Hugging Face does: SmolLM2 lacks 04 06 13 14 16 1D C0 C1 F1 F2 and F5
  // to FF. With parse_special, special and added tokens in the text become their ids, at each place the longest;
  // without it, special tokens are text (added tokens still match): use that for what users, tools and models wrote.
  // Linear up to a logarithm, a long word included.
  virtual std::vector<TokenId> encode(std::string_view text, bool parse_special = false) const = 0;

  // The bytes of one token; empty for special tokens unless `keep_special`. An id outside the vocabulary gives "": a
  // model may have padded its embedding (Qwen2: 151,936 rows for 151,665 tokens), and can generate such ids.
  virtual std::string_view token_bytes(TokenId id, bool keep_special = false) const = 0;
  std::string decode(std::span<const TokenId> ids, bool keep_special = false) const;
  // The id of a token as it stands in spec().tokens.
  virtual std::optional<TokenId> find(std::string_view token) const = 0;
  virtual bool is_special(TokenId id) const = 0;

  // tokenizer.json, as Hugging Face's `tokenizers` reads it. What that format has no field for (bos, eos, pad and the
  // chat template) stands under "flotilla" in "model", where `tokenizers` ignores it; it may be missing.
  std::string to_json() const;
  // data_loss for text that is not JSON, invalid_argument for anything that would give other ids than `tokenizers` does
  // (another model, pre-tokenizer or normalizer, ...); the message names the field, what it holds and what was
  // expected.
  static Result<std::shared_ptr<const Tokenizer>> from_json(std::string_view text);
  // SHA-256 of everything that fixes ids and text: tokens, merges, special, added, pre-tokenizer.
  virtual const Sha256Digest& digest() const = 0;
};

// Decodes token by token and holds back the bytes of an unfinished UTF-8 character. Not thread safe.
class StreamingDecoder {
 public:
  explicit StreamingDecoder(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}
  std::string push(TokenId id);
  // What was held back, as it is.
  std::string finish();

 private:
  const Tokenizer& tokenizer_;
  std::string pending_;
};

}  // namespace flotilla
