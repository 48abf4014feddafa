#include "env/environment.h"

#include <fmt/format.h>

#include "env/dictionary.h"

namespace flotilla {
namespace {

Status unknown_environment(std::string_view name) {
  return invalid_argument(fmt::format("environment \"{}\" is not known (known: dictionary)", name));
}

}  // namespace

std::string_view split_name(Split split) { return split == Split::kTrain ? "train" : "held_out"; }

Result<std::unique_ptr<Environment>> open_environment(std::string_view name, ByteSpan artifact,
                                                      const std::filesystem::path& cache) {
  if (name != "dictionary") return unknown_environment(name);
  return open_dictionary(artifact, cache);
}

Result<Bytes> build_environment_artifact(std::string_view name, const std::filesystem::path& source) {
  if (name != "dictionary") return unknown_environment(name);
  FLOTILLA_ASSIGN_OR_RETURN(const Dictionary dictionary, make_dictionary(source));
  return write_dictionary(dictionary);
}

}  // namespace flotilla
