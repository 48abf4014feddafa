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
  std::vector<std::string> tokens;                                  // by id, in GPT-2's printable byte alphabet
  std::vector<std::pair<std::string, std::string>> merges;          // by rank
  std::vector<TokenId> special;                                     // control tokens: matched whole in text, hidden when decoded
  std::vector<TokenId> added;                                       // other added tokens: matched whole, kept when decoded
  std::string pre_tokenizer = "smollm";                             // names a pattern that the tokenizer knows
  TokenId bos = -1, eos = -1, pad = -1;                             // -1: none
  std::string chat_template;                                        // Jinja text as the model ships it; kept, compared, not run
};

// Text <-> ids. Immutable and thread safe after creation.
class Tokenizer {
 public:
  static Result<std::shared_ptr<const Tokenizer>> create(TokenizerSpec spec);
  virtual ~Tokenizer() = default;

  virtual const TokenizerSpec& spec() const = 0;
  std::int32_t vocabulary() const { return static_cast<std::int32_t>(spec().tokens.size()); }

  // Any bytes are accepted: what is not valid UTF-8 is encoded byte by byte, so decode(encode(s)) == s for text without
  // special tokens. With parse_special, special and added tokens in the text become their ids; without it, they are text:
  // use that for what users, tools and models wrote.
  virtual std::vector<TokenId> encode(std::string_view text, bool parse_special = false) const = 0;

  // The bytes of one token; empty for special tokens unless `keep_special`. An id outside the vocabulary gives "".
  virtual std::string_view token_bytes(TokenId id) const = 0;
  std::string decode(std::span<const TokenId> ids, bool keep_special = false) const;
  virtual std::optional<TokenId> find(std::string_view token) const = 0;
  virtual bool is_special(TokenId id) const = 0;

  // tokenizer.json, as Hugging Face's `tokenizers` reads it; and the digest of everything that fixes ids and text.
  std::string to_json() const;
  static Result<std::shared_ptr<const Tokenizer>> from_json(std::string_view text);
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
