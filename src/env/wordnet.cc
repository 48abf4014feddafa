#include <algorithm>
#include <charconv>
#include <optional>
#include <set>
#include <unordered_map>

#include <fmt/format.h>

#include "base/files.h"
#include "base/philox.h"
#include "env/dictionary_entry.h"
#include "env/words.h"

namespace flotilla {
namespace {

// A noun synset as a line of data.noun has it: "offset file n count (word id)* pointers (symbol offset pos source)* |
// gloss".
struct Synset {
  std::uint64_t offset = 0;
  std::uint32_t file = 0;  // lexicographer file, lexnames(5WN)
  std::vector<std::string> lemmas;
  std::optional<std::uint64_t> hypernym;  // the first one
  std::string_view gloss;
};

constexpr std::uint32_t kFiles[] = {5, 6, 13, 20};  // noun.animal, noun.artifact, noun.food, noun.plant
constexpr std::size_t kMinWords = 5, kMaxWords = 16;

template <typename T>
bool read_number(std::string_view text, int base, T& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, base);
  return error == std::errc() && end == text.data() + text.size();
}

Result<Synset> read_synset(std::string_view line) {
  Synset synset;
  const std::size_t bar = line.find(" | ");
  if (bar == std::string_view::npos) return data_loss("no gloss");
  synset.gloss = line.substr(bar + 3);
  const std::vector<std::string_view> fields = split_at_space(line.substr(0, bar));
  std::size_t words = 0, pointers = 0;
  if (fields.size() < 4 || !read_number(fields[0], 10, synset.offset) || !read_number(fields[1], 10, synset.file) ||
      !read_number(fields[3], 16, words)) {
    return data_loss("it does not begin with offset, file, type and number of words");
  }
  // The numbers are bounded first: their multiples must not wrap round.
  const std::size_t count = fields.size();
  if (words == 0 || words > count || count < 5 + 2 * words || !read_number(fields[4 + 2 * words], 10, pointers) ||
      pointers > count || count != 5 + 2 * words + 4 * pointers) {
    return data_loss("the numbers of words and pointers do not fit its length");
  }
  for (std::size_t i = 0; i < words; ++i) {
    std::string lemma(fields[4 + 2 * i]);
    std::replace(lemma.begin(), lemma.end(), '_', ' ');
    synset.lemmas.push_back(std::move(lemma));
  }
  for (std::size_t i = 0; i < pointers && !synset.hypernym; ++i) {
    const std::size_t at = 5 + 2 * words + 4 * i;
    if (fields[at] != "@" && fields[at] != "@i") continue;
    if (!read_number(fields[at + 1], 10, synset.hypernym.emplace())) return data_loss("a hypernym without an offset");
  }
  return synset;
}

bool is_plain_term(std::string_view term) {
  return std::all_of(term.begin(), term.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == ' ' || c == '\'' || c == '-';
  });
}

// D: the definition without the words of the entry's terms, and without some content words. One that loses all of them
// keeps them all: there would be nothing to search for. "" when there is none to begin with.
std::string describe(const std::vector<std::string_view>& definition, const Synset& synset) {
  std::set<std::string> own;
  for (const std::string& lemma : synset.lemmas) {
    for (std::string& word : words_of(lemma)) own.insert(std::move(word));
  }
  PhiloxStream random(kDictionarySeed, synset.offset);
  std::string whole, thinned;
  std::size_t content = 0, kept = 0;
  const auto append = [](std::string& text, std::string_view word) {
    if (!text.empty()) text += ' ';
    text += word;
  };
  for (const std::string_view token : definition) {
    const std::vector<std::string> words = words_of(token);
    if (std::any_of(words.begin(), words.end(), [&](const std::string& word) { return own.contains(word); })) continue;
    append(whole, token);
    if (!std::all_of(words.begin(), words.end(), is_function_word)) {
      ++content;
      if (random.uniform() < kDropProbability) continue;
      ++kept;
    }
    append(thinned, token);
  }
  if (content == 0) return "";
  std::string& text = kept > 0 ? thinned : whole;
  text.erase(text.find_last_not_of(" ,.:") + 1);
  return text;
}

}  // namespace

Result<std::vector<DictionaryEntry>> read_wordnet_nouns(std::string_view data_noun) {
  std::vector<Synset> synsets;
  std::unordered_map<std::uint64_t, std::size_t> by_offset;
  std::size_t number = 0;
  while (!data_noun.empty()) {
    const std::size_t end = std::min(data_noun.find('\n'), data_noun.size());
    const std::string_view line = data_noun.substr(0, end);
    data_noun.remove_prefix(std::min(end + 1, data_noun.size()));
    ++number;
    if (line.starts_with("  ")) continue;  // the license
    FLOTILLA_ASSIGN_OR_RETURN(Synset synset, read_synset(line).with_context(fmt::format("data.noun line {}", number)));
    by_offset.emplace(synset.offset, synsets.size());
    synsets.push_back(std::move(synset));
  }

  std::vector<DictionaryEntry> entries;
  for (const Synset& synset : synsets) {
    if (!synset.hypernym || std::find(std::begin(kFiles), std::end(kFiles), synset.file) == std::end(kFiles)) continue;
    const std::vector<std::string_view> definition = split_at_space(synset.gloss.substr(0, synset.gloss.find(';')));
    if (definition.size() < kMinWords || definition.size() > kMaxWords || !is_plain_term(synset.lemmas[0])) continue;
    const auto hypernym = by_offset.find(*synset.hypernym);
    if (hypernym == by_offset.end()) {
      return data_loss(
          fmt::format("data.noun: {} has the hypernym {}, which does not exist", synset.offset, *synset.hypernym));
    }
    DictionaryEntry entry;
    entry.answers = synset.lemmas;
    for (const std::string_view token : definition) {
      entry.definition += fmt::format("{}{}", entry.definition.empty() ? "" : " ", token);
    }
    entry.kind = synsets[hypernym->second].lemmas[0];
    entry.description = describe(definition, synset);
    if (!entry.description.empty()) entries.push_back(std::move(entry));
  }
  return entries;
}

Result<Dictionary> make_dictionary(const std::filesystem::path& wordnet_folder) {
  FLOTILLA_ASSIGN_OR_RETURN(const std::string text, read_text_file(wordnet_folder / "data.noun"));
  Dictionary dictionary;
  FLOTILLA_ASSIGN_OR_RETURN(dictionary.entries, read_wordnet_nouns(text).with_context(wordnet_folder.string()));
  if (dictionary.entries.size() < kDictionaryEntries) {
    return failed_precondition(fmt::format("{}: {} usable entries; the task needs {} (WordNet 3.0 has them)",
                                           wordnet_folder.string(), dictionary.entries.size(), kDictionaryEntries));
  }
  PhiloxStream random(kDictionarySeed, 0);
  shuffle(std::span(dictionary.entries), random);
  dictionary.entries.resize(kDictionaryEntries);
  dictionary.held_out = kDictionaryHeldOut;
  return dictionary;
}

}  // namespace flotilla
