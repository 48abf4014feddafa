#pragma once

#include <filesystem>
#include <memory>

#include "env/dictionary_entry.h"
#include "env/environment.h"

namespace flotilla {

// Name the term that a description fits, with a search engine over the dictionary. docs/environments/dictionary.md has
// the rules. `artifact` is what write_dictionary wrote; the index goes to `cache`.
Result<std::unique_ptr<Environment>> open_dictionary(ByteSpan artifact, const std::filesystem::path& cache);

}  // namespace flotilla
