#pragma once

#include <span>
#include <string>
#include <vector>

#include "model/tokenizer.h"
#include "serve/generation.h"

namespace flotilla {

// A choice's tokens as text, cut before the first stop string. Text that could still become a stop string, and the
// first bytes of an unfinished character, are held back, by whole tokens. Not thread safe.
class TextStream {
 public:
  // Borrows the tokenizer. Stop strings are not empty.
  TextStream(const Tokenizer& tokenizer, std::vector<std::string> stops);

  struct Piece {
    std::string text;
    std::vector<ScoredToken> tokens;  // of which at least the first byte is in the text; special tokens have none
    bool stopped = false;             // a stop string was found: `text` ends before it, and nothing may follow
  };
  // What can be let out after one more token.
  Piece push(ScoredToken token);
  // All that was held back.
  Piece finish();

 private:
  struct Held {
    ScoredToken token;
    std::size_t end;  // in text_
  };
  // The first `bytes` of the text with the tokens that begin in them.
  Piece release(std::size_t bytes);
  // Bytes that no stop string and no character can reach back into.
  std::size_t safe_bytes() const;

  const Tokenizer& tokenizer_;
  const std::vector<std::string> stops_;
  std::string text_;        // held back
  std::vector<Held> held_;  // its tokens
};

}  // namespace flotilla
