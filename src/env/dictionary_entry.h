#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/status.h"

namespace flotilla {

// A document of the dictionary and the task that asks for it.
struct DictionaryEntry {
  std::vector<std::string> answers;  // the terms of the entry, at least one; the first is the document's title
  std::string definition;            // the document's body
  std::string kind;                  // H of the question: "Which H is described as: D?"
  std::string description;           // D
  const std::string& title() const { return answers.front(); }
  bool operator==(const DictionaryEntry&) const = default;
};

// Documents and tasks in their order; the last `held_out` of them are never trained on.
struct Dictionary {
  std::vector<DictionaryEntry> entries;
  std::uint32_t held_out = 0;  // 1 to entries.size() - 1
  bool operator==(const Dictionary&) const = default;
};

// docs/formats/environment-artifact.md. The reader is strict: whatever is not exactly what the writer writes is
// data_loss.
Bytes write_dictionary(const Dictionary& dictionary);
Result<Dictionary> read_dictionary(ByteSpan bytes);

// The split: entries are shuffled with this seed, so many are kept, and the last are held out.
inline constexpr std::uint64_t kDictionarySeed = 20240607;
inline constexpr std::size_t kDictionaryEntries = 20'000;
inline constexpr std::uint32_t kDictionaryHeldOut = 500;
inline constexpr double kDropProbability = 0.35;  // of a content word of the definition, in D

// The dictionary of reference form (docs/environments/dictionary.md) from the text of WordNet's data.noun. data_loss
// names the line that is not in WordNet's format (wndb(5WN)).
Result<std::vector<DictionaryEntry>> read_wordnet_nouns(std::string_view data_noun);
// Shuffles, cuts and splits what read_wordnet_nouns found in folder/data.noun; failed_precondition when there are too
// few.
Result<Dictionary> make_dictionary(const std::filesystem::path& wordnet_folder);

}  // namespace flotilla
