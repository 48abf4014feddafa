#include "model/pre_tokenizer.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <limits>

#include <fmt/format.h>

#include "model/tokenizer_utf8.h"

namespace flotilla {
namespace {

// Parts of character classes. PCRE2 10.42 knows Unicode 14: the ranges are the letters and numbers assigned since, up
// to the version named in the header. tests/oracles/tokenizer_oracle.py covers every code point.
constexpr std::string_view kLetters =
    R"(\p{L}\x{1C89}\x{1C8A}\x{A7CB}-\x{A7CD}\x{A7DA}-\x{A7DC}\x{105C0}-\x{105F3}\x{10D4A}-\x{10D65})"
    R"(\x{10D6F}-\x{10D85}\x{10EC2}-\x{10EC4}\x{1123F}\x{11240}\x{11380}-\x{11389}\x{1138B}\x{1138E})"
    R"(\x{11390}-\x{113B5}\x{113B7}\x{113D1}\x{113D3}\x{11BC0}-\x{11BE0}\x{11F02}\x{11F04}-\x{11F10})"
    R"(\x{11F12}-\x{11F33}\x{1342F}\x{13441}-\x{13446}\x{13460}-\x{143FA}\x{16100}-\x{1611D}\x{16D40}-\x{16D6C})"
    R"(\x{18CFF}\x{1B132}\x{1B155}\x{1DF25}-\x{1DF2A}\x{1E030}-\x{1E06D}\x{1E4D0}-\x{1E4EB}\x{1E5D0}-\x{1E5ED})"
    R"(\x{1E5F0}\x{2B739}\x{2EBF0}-\x{2EE5D}\x{31350}-\x{323AF})";
constexpr std::string_view kNumbers =
    R"(\p{N}\x{10D40}-\x{10D49}\x{116D0}-\x{116E3}\x{11BF0}-\x{11BF9}\x{11F50}-\x{11F59}\x{16130}-\x{16139})"
    R"(\x{16D70}-\x{16D79}\x{1CCF0}-\x{1CCF9}\x{1D2C0}-\x{1D2D3}\x{1E4F0}-\x{1E4F9}\x{1E5F1}-\x{1E5FA})";
// Numeric for Rust's char::is_numeric, which Digits asks, and not yet for ByteLevel's pattern.
constexpr std::string_view kNewestNumbers = R"(\x{11DE0}-\x{11DE9}\x{16FF4}-\x{16FF6})";
// Unicode's White_Space. PCRE2's own \s has U+180E too.
constexpr std::string_view kLineEnds = R"(\r\n)";
constexpr std::string_view kSpace =
    R"(\r\n\t\x{B}\f \x{85}\x{A0}\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}\x{202F}\x{205F}\x{3000})";
static_assert(kSpace.starts_with(kLineEnds));
constexpr std::string_view kBlanks = kSpace.substr(kLineEnds.size());

// Possessive quantifiers: no class can give back a character that a later part of its alternative wants, and PCRE2 then
// needs no memory that grows with the word. The last two alternatives are GPT-2's \s+(?!\S)|\s+: all white space but
// its last character, which goes to the word behind it.
std::string gpt2_pattern() {
  return fmt::format("'(?:s|t|re|ve|m|ll|d)| ?[{0}]++| ?[{1}]++| ?[^{2}{0}{1}]++|[{2}]+(?![^{2}])|[{2}]++", kLetters,
                     kNumbers, kSpace);
}

// Digits cuts first, so that a number ends a run of white space as the end of the text does.
std::string smollm_pattern() {
  return fmt::format("[{1}{3}]|'(?:s|t|re|ve|m|ll|d)| ?[{0}]++| ?[^{2}{0}{1}{3}]++|[{2}]+(?![^{2}{1}{3}])|[{2}]++",
                     kLetters, kNumbers, kSpace, kNewestNumbers);
}

// (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
// with \s*[\r\n]+, white space up to its last line end, as lines of blanks: that needs no way back.
std::string qwen2_pattern() {
  return fmt::format(
      "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^{3}{0}{1}]?+[{0}]++|[{1}]| ?[^{2}{0}{1}]++[{3}]*+|(?:[{4}]*+[{3}]++)++"
      "|[{2}]+(?![^{2}])|[{2}]++",
      kLetters, kNumbers, kSpace, kLineEnds, kBlanks);
}

struct Pattern {
  std::string_view name;
  std::string (*text)();
  bool normalizes;
};
constexpr Pattern kPatterns[] = {
    {"smollm", smollm_pattern, false}, {"gpt-2", gpt2_pattern, false}, {"qwen2", qwen2_pattern, true}};

class PcrePreTokenizer : public PreTokenizer {
 public:
  PcrePreTokenizer(pcre2_code* code, bool normalizes) : code_(code), normalizes_(normalizes) {
    FLOTILLA_CHECK(context_ != nullptr);
    // A word may repeat a group as often as the text is long: blank lines, say.
    pcre2_set_match_limit(context_, std::numeric_limits<std::uint32_t>::max());
  }
  ~PcrePreTokenizer() override {
    pcre2_match_context_free(context_);
    pcre2_code_free(code_);
  }

  bool normalizes() const override { return normalizes_; }

  std::vector<std::string_view> split(std::string_view text) const override {
    std::vector<std::string_view> words;
    pcre2_match_data* match = pcre2_match_data_create(1, nullptr);
    FLOTILLA_CHECK(match != nullptr);
    while (!text.empty()) {
      const std::size_t valid = utf8_valid_prefix(text);
      split_valid(text.substr(0, valid), match, words);
      text.remove_prefix(valid);
      std::size_t invalid = 0;
      while (invalid < text.size() && utf8_character(text.substr(invalid)) == 0) ++invalid;
      if (invalid > 0) words.push_back(text.substr(0, invalid));
      text.remove_prefix(invalid);
    }
    pcre2_match_data_free(match);
    return words;
  }

 private:
  void split_valid(std::string_view text, pcre2_match_data* match, std::vector<std::string_view>& words) const {
    const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
    std::size_t start = 0;
    while (start < text.size()) {
      // The check of the whole subject in each call would make this quadratic.
      const int found = pcre2_match(code_, subject, text.size(), start, PCRE2_NO_UTF_CHECK, match, context_);
      // Each character is in some class, and no alternative is recursive: anything else is a bug in the pattern.
      FLOTILLA_CHECK(found > 0);
      const std::size_t end = pcre2_get_ovector_pointer(match)[1];
      FLOTILLA_CHECK(end > start);
      words.push_back(text.substr(start, end - start));
      start = end;
    }
  }

  pcre2_code* code_;
  pcre2_match_context* context_ = pcre2_match_context_create(nullptr);
  bool normalizes_;
};

}  // namespace

std::string known_pre_tokenizers() {
  std::string names;
  for (const Pattern& pattern : kPatterns) names += fmt::format("{}{}", names.empty() ? "" : ", ", pattern.name);
  return names;
}

Result<std::shared_ptr<const PreTokenizer>> PreTokenizer::create(std::string_view name) {
  for (const Pattern& pattern : kPatterns) {
    if (pattern.name != name) continue;
    const std::string text = pattern.text();
    int error = 0;
    PCRE2_SIZE position = 0;
    pcre2_code* code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(),
                                     PCRE2_UTF | PCRE2_UCP | PCRE2_ANCHORED, &error, &position, nullptr);
    if (code == nullptr) {
      return internal_error(fmt::format("pre-tokenizer {}: PCRE2 error {} at {}", name, error, position));
    }
    // Without JIT (a build of PCRE2 may lack it) the same code is interpreted.
    pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);
    return std::shared_ptr<const PreTokenizer>(std::make_shared<PcrePreTokenizer>(code, pattern.normalizes));
  }
  return invalid_argument(
      fmt::format("pre-tokenizer \"{}\" is not supported (known: {})", name, known_pre_tokenizers()));
}

}  // namespace flotilla
