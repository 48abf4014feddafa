#include <cmath>

#include <fmt/format.h>

#include "model/model_import.h"

namespace flotilla {

Status check_finite(const std::vector<float>& values) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (!std::isfinite(values[i])) {
      return data_loss(fmt::format("element {} is {}", i, std::isnan(values[i]) ? "NaN" : "infinite"));
    }
  }
  return ok_status();
}

Status check_vocabulary(const ModelDescription& description, const Tokenizer& tokenizer) {
  if (tokenizer.vocabulary() == description.vocabulary) return ok_status();
  return invalid_argument(fmt::format("the tokenizer has {} tokens, the embedding {} rows", tokenizer.vocabulary(),
                                      description.vocabulary));
}

Result<Model> load_model(const std::filesystem::path& path) {
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  if (status.type() == std::filesystem::file_type::directory) return load_model_folder(path);
  return load_gguf_model(path);
}

}  // namespace flotilla
