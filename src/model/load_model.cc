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
  // Models pad their embedding to a multiple of 64 to 512 rows (Qwen2.5: up to 399 too many). More is another
  // tokenizer.
  constexpr std::int32_t kPaddingMax = 1024;
  const std::int32_t padding = description.vocabulary - tokenizer.vocabulary();
  if (0 <= padding && padding <= kPaddingMax) return ok_status();
  return invalid_argument(
      fmt::format("the tokenizer has {} tokens, the embedding {} rows; expected as many rows, or up "
                  "to {} more",
                  tokenizer.vocabulary(), description.vocabulary, kPaddingMax));
}

Result<Model> load_model(const std::filesystem::path& path) {
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  if (status.type() == std::filesystem::file_type::directory) return load_model_folder(path);
  return load_gguf_model(path);
}

}  // namespace flotilla
