#include <cstddef>
#include <cstdint>

#include "base/bytes.h"
#include "env/dictionary_entry.h"

// Whatever is accepted makes entries with a term and something to search for.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace flotilla;
  const auto entries = read_wordnet_nouns(as_text({data, size}));
  if (!entries.ok()) return 0;
  for (const DictionaryEntry& entry : *entries) FLOTILLA_CHECK(!entry.answers.empty() && !entry.description.empty());
  return 0;
}
