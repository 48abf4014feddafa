#include "env/words.h"

#include <algorithm>

namespace flotilla {
namespace {

constexpr std::string_view kFunctionWords[] = {
    "a",        "about",   "above",   "across", "after",    "again",   "against", "all",        "along",     "also",
    "although", "among",   "an",      "and",    "any",      "are",     "around",  "as",         "at",        "be",
    "because",  "been",    "before",  "being",  "below",    "between", "both",    "but",        "by",        "can",
    "could",    "did",     "do",      "does",   "during",   "each",    "either",  "especially", "etc",       "even",
    "ever",     "every",   "few",     "for",    "from",     "had",     "has",     "have",       "having",    "he",
    "her",      "him",     "his",     "how",    "if",       "in",      "into",    "is",         "it",        "its",
    "least",    "less",    "like",    "many",   "may",      "might",   "more",    "most",       "much",      "must",
    "near",     "no",      "nor",     "not",    "of",       "off",     "often",   "on",         "one",       "only",
    "onto",     "or",      "other",   "others", "out",      "over",    "own",     "per",        "rather",    "same",
    "shall",    "she",     "should",  "since",  "so",       "some",    "someone", "something",  "sometimes", "such",
    "than",     "that",    "the",     "their",  "them",     "then",    "there",   "these",      "they",      "this",
    "those",    "though",  "through", "to",     "together", "too",     "toward",  "under",      "until",     "up",
    "upon",     "usually", "various", "very",   "via",      "was",     "were",    "what",       "when",      "where",
    "whether",  "which",   "while",   "who",    "whom",     "whose",   "why",     "will",       "with",      "within",
    "without",  "would",   "yet"};
static_assert(std::is_sorted(std::begin(kFunctionWords), std::end(kFunctionWords)));

bool is_word_byte(char c) {
  const auto byte = static_cast<unsigned char>(c);
  return byte >= 0x80 || (byte >= '0' && byte <= '9') || (byte >= 'a' && byte <= 'z') || (byte >= 'A' && byte <= 'Z');
}

char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

}  // namespace

std::vector<std::string> words_of(std::string_view text) {
  std::vector<std::string> words;
  bool inside = false;
  for (const char c : text) {
    if (is_word_byte(c)) {
      if (!inside) words.emplace_back();
      words.back() += lower(c);
    }
    inside = is_word_byte(c);
  }
  return words;
}

std::vector<std::string_view> split_at_space(std::string_view text) {
  constexpr std::string_view kSpace = " \t\r\n\v\f";
  std::vector<std::string_view> parts;
  for (std::size_t begin = text.find_first_not_of(kSpace); begin != std::string_view::npos;) {
    const std::size_t end = std::min(text.find_first_of(kSpace, begin), text.size());
    parts.push_back(text.substr(begin, end - begin));
    begin = text.find_first_not_of(kSpace, end);
  }
  return parts;
}

std::span<const std::string_view> function_words() { return kFunctionWords; }

bool is_function_word(std::string_view word) {
  return std::binary_search(std::begin(kFunctionWords), std::end(kFunctionWords), word);
}

std::string normalized_answer(std::string_view answer) {
  std::string normalized;
  for (const std::string& word : words_of(answer)) {
    if (word == "a" || word == "an" || word == "the") continue;
    if (!normalized.empty()) normalized += ' ';
    normalized += word;
  }
  return normalized;
}

}  // namespace flotilla
