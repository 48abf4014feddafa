#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "model/grid.h"
#include "model/half.h"
#include "model/model_import.h"
#include "model/safetensors.h"
#include "model/strict_json.h"

namespace flotilla {
namespace fs = std::filesystem;
namespace {

using nlohmann::json;

constexpr const char* kConfigFile = "config.json";
constexpr const char* kWeightsFile = "model.safetensors";
constexpr const char* kTokenizerFile = "tokenizer.json";
constexpr const char* kTokenizerConfigFile = "tokenizer_config.json";
constexpr const char* kChatTemplateFile = "chat_template.jinja";

bool has_file(const fs::path& path) {
  std::error_code error;
  return fs::exists(path, error);
}

TensorShape shape_of(const TensorSpec& spec) {
  return spec.kind == TensorKind::kMatrix ? TensorShape{spec.rows, spec.cols} : TensorShape{spec.cols};
}

Result<std::vector<float>> read_tensor(const TensorSpec& spec, const TensorView& tensor) {
  if (tensor.shape != shape_of(spec)) {
    return data_loss(
        fmt::format("shape [{}], expected [{}]", fmt::join(tensor.shape, ", "), fmt::join(shape_of(spec), ", ")));
  }
  std::vector<float> values;
  if (tensor.dtype == DType::kF32) {
    values = tensor.copy<float>();
  } else if (tensor.dtype == DType::kF16 || tensor.dtype == DType::kBF16) {
    const auto widen = tensor.dtype == DType::kF16 ? half_to_float : bf16_to_float;
    values.reserve(spec.size());
    for (const std::uint16_t bits : tensor.copy<std::uint16_t>()) values.push_back(widen(bits));
  } else {
    return data_loss(fmt::format("dtype {}, expected F32, F16 or BF16", dtype_name(tensor.dtype)));
  }
  FLOTILLA_RETURN_IF_ERROR(check_finite(values));
  return values;
}

Result<ModelWeights> read_weights(const SafetensorsFile& file, ModelDescription description) {
  ModelWeights weights{std::move(description), {}};
  for (const TensorSpec& spec : weights.description.tensors) {
    const TensorView* tensor = file.find(spec.name);
    if (tensor == nullptr) return data_loss(fmt::format("tensor {} is missing", spec.name));
    FLOTILLA_ASSIGN_OR_RETURN(auto values, read_tensor(spec, *tensor).with_context("tensor " + spec.name));
    weights.tensors.push_back(std::move(values));
  }
  for (const TensorView& tensor : file.tensors()) {
    if (!weights.description.find(tensor.name)) {
      return data_loss(fmt::format("tensor {} is not part of a {} model with {} embeddings", tensor.name,
                                   weights.description.architecture,
                                   weights.description.tied_embeddings ? "tied" : "untied"));
    }
  }
  return weights;
}

// A token of tokenizer_config.json: its text, or an object with the text as content, or null.
Status read_token(const json& config, const char* field, const Tokenizer& tokenizer, TokenId& id) {
  if (id >= 0 || !config.contains(field) || config[field].is_null()) return ok_status();
  const json& value = config[field];
  const json& text = value.is_object() && value.contains("content") ? value["content"] : value;
  if (!text.is_string()) return invalid_argument(fmt::format("{} is not a token", field));
  const auto found = tokenizer.find(text.get_ref<const std::string&>());
  if (!found) return invalid_argument(fmt::format("{} = {} is not in the vocabulary", field, text.dump()));
  id = *found;
  return ok_status();
}

// Fills in what tokenizer.json has no place for, unless we wrote it there ourselves.
Status read_tokenizer_config(std::string_view text, const Tokenizer& tokenizer, TokenizerSpec& spec) {
  FLOTILLA_ASSIGN_OR_RETURN(const json config, parse_strict_json(text));
  if (!config.is_object()) return invalid_argument("not a JSON object");
  FLOTILLA_RETURN_IF_ERROR(read_token(config, "bos_token", tokenizer, spec.bos));
  FLOTILLA_RETURN_IF_ERROR(read_token(config, "eos_token", tokenizer, spec.eos));
  FLOTILLA_RETURN_IF_ERROR(read_token(config, "pad_token", tokenizer, spec.pad));
  if (spec.chat_template.empty() && config.contains("chat_template") && config["chat_template"].is_string()) {
    spec.chat_template = config["chat_template"].get<std::string>();
  }
  return ok_status();
}

Result<std::shared_ptr<const Tokenizer>> read_tokenizer(const fs::path& folder) {
  FLOTILLA_ASSIGN_OR_RETURN(const std::string text, read_text_file(folder / kTokenizerFile));
  FLOTILLA_ASSIGN_OR_RETURN(const auto tokenizer, Tokenizer::from_json(text).with_context(folder.string()));
  TokenizerSpec spec = tokenizer->spec();
  if (const fs::path path = folder / kChatTemplateFile; spec.chat_template.empty() && has_file(path)) {
    FLOTILLA_ASSIGN_OR_RETURN(spec.chat_template, read_text_file(path));
  }
  if (const fs::path path = folder / kTokenizerConfigFile; has_file(path)) {
    FLOTILLA_ASSIGN_OR_RETURN(const std::string config, read_text_file(path));
    FLOTILLA_RETURN_IF_ERROR(read_tokenizer_config(config, *tokenizer, spec).with_context(path.string()));
  }
  return Tokenizer::create(std::move(spec)).with_context(folder.string());
}

std::string tokenizer_config_json(const TokenizerSpec& spec) {
  nlohmann::ordered_json config = {{"tokenizer_class", "PreTrainedTokenizerFast"},
                                   {"clean_up_tokenization_spaces", false},
                                   {"add_bos_token", false},
                                   {"add_prefix_space", false}};
  for (const auto& [field, id] : {std::pair{"bos_token", spec.bos}, {"eos_token", spec.eos}, {"pad_token", spec.pad}}) {
    if (id >= 0) config[field] = spec.tokens[id];
  }
  if (!spec.chat_template.empty()) config["chat_template"] = spec.chat_template;
  return config.dump(2) + "\n";
}

}  // namespace

Result<Model> load_model_folder(const fs::path& folder) {
  const fs::path config_path = folder / kConfigFile;
  FLOTILLA_ASSIGN_OR_RETURN(const std::string config, read_text_file(config_path));
  FLOTILLA_ASSIGN_OR_RETURN(ModelDescription description,
                            ModelDescription::from_config_json(config).with_context(config_path.string()));
  Model model;
  FLOTILLA_ASSIGN_OR_RETURN(model.tokenizer, read_tokenizer(folder));
  FLOTILLA_RETURN_IF_ERROR(check_vocabulary(description, *model.tokenizer).with_context(folder.string()));
  const fs::path weights_path = folder / kWeightsFile;
  if (!has_file(weights_path) && has_file(folder / "model.safetensors.index.json")) {
    return invalid_argument(
        fmt::format("{}: weights in several files cannot be read; save them as one {}", folder.string(), kWeightsFile));
  }
  FLOTILLA_ASSIGN_OR_RETURN(const SafetensorsFile file, SafetensorsFile::open(weights_path));
  FLOTILLA_ASSIGN_OR_RETURN(model.weights,
                            read_weights(file, std::move(description)).with_context(weights_path.string()));
  return model;
}

Status save_model_folder(const fs::path& folder, const ModelWeights& weights, const Tokenizer& tokenizer) {
  const ModelDescription& description = weights.description;
  FLOTILLA_RETURN_IF_ERROR(check_vocabulary(description, tokenizer));
  if (weights.tensors.size() != description.tensors.size()) {
    return invalid_argument(
        fmt::format("{} tensors of weights, expected {}", weights.tensors.size(), description.tensors.size()));
  }
  std::vector<TensorToWrite> tensors;
  for (std::size_t i = 0; i < weights.tensors.size(); ++i) {
    const TensorSpec& spec = description.tensors[i];
    tensors.push_back({spec.name, DType::kF32, shape_of(spec), as_bytes(std::span<const float>(weights.tensors[i]))});
  }
  FLOTILLA_RETURN_IF_ERROR(write_safetensors_file(folder / kWeightsFile, tensors, {{"format", "pt"}}));
  FLOTILLA_RETURN_IF_ERROR(write_file_atomically(folder / kTokenizerFile, tokenizer.to_json()));
  FLOTILLA_RETURN_IF_ERROR(
      write_file_atomically(folder / kTokenizerConfigFile, tokenizer_config_json(tokenizer.spec())));
  // Last: a folder without it is not a model, so one that was left half written is refused.
  return write_file_atomically(folder / kConfigFile, description.to_config_json());
}

}  // namespace flotilla
