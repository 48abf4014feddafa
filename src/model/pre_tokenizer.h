#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace flotilla {

// Cuts text into the words within which byte pairs are merged. The names are those of GGUF's `tokenizer.ggml.pre`:
//   "gpt-2"   Hugging Face's ByteLevel(add_prefix_space=false, use_regex=true), GPT-2's pattern;
//   "smollm"  Sequence[Digits(individual_digits=true), the same]: each numeric character is a word of its own;
//   "qwen2"   the pattern of Qwen2 and Qwen2.5: contractions in any case, one character before the letters of a word,
//             each number a word of its own, line ends with what they follow. Its text is in form C (normalizes).
// Letters, numbers and white space are those of Unicode 16 (numeric characters of Digits: 17), as in PyPI tokenizers
// 0.23.3; characters that are newer are classed as the installed PCRE2 does.
// Each maximal run of bytes that are not UTF-8 is a word; the text before and after it is cut as if it stood alone.
// Immutable and thread safe.
class PreTokenizer {
 public:
  // invalid_argument for a name that is not in the list above.
  static Result<std::shared_ptr<const PreTokenizer>> create(std::string_view name);
  virtual ~PreTokenizer() = default;

  // True when text is to be brought to form C (nfc.h) before it is split.
  virtual bool normalizes() const = 0;
  // The words of `text` in order; together they are `text`. Views into it. Linear time.
  virtual std::vector<std::string_view> split(std::string_view text) const = 0;
};

// "smollm, gpt-2, qwen2": for error messages.
std::string known_pre_tokenizers();

}  // namespace flotilla
