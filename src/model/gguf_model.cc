#include <algorithm>
#include <limits>
#include <optional>

#include <fmt/format.h>

#include "model/gguf.h"
#include "model/model_import.h"

namespace flotilla {
namespace {

// Typed access to the metadata; each error names the key.
class MetadataReader {
 public:
  explicit MetadataReader(const GgufFile& file) : metadata_(file.metadata()) {}

  bool has(std::string_view key) const { return metadata_.contains(key); }

  template <typename T>
  Result<T> get(std::string_view key, std::string_view expected) const {
    const auto found = metadata_.find(key);
    if (found == metadata_.end()) return invalid_argument(fmt::format("{} is missing", key));
    const T* value = std::get_if<T>(&found->second);
    if (value == nullptr) return invalid_argument(fmt::format("{} is not {}", key, expected));
    return *value;
  }

  Result<std::string_view> text(std::string_view key) const { return get<std::string_view>(key, "a string"); }
  Result<std::vector<std::string_view>> texts(std::string_view key) const {
    return get<std::vector<std::string_view>>(key, "a list of strings");
  }
  Result<double> number(std::string_view key) const { return get<double>(key, "a floating-point number"); }
  Result<std::int32_t> size(std::string_view key) const {
    FLOTILLA_ASSIGN_OR_RETURN(const std::uint64_t value, get<std::uint64_t>(key, "an unsigned integer"));
    if (value > std::numeric_limits<std::int32_t>::max()) {
      return invalid_argument(fmt::format("{} = {}, expected less than 2^31", key, value));
    }
    return static_cast<std::int32_t>(value);
  }
  Result<std::int32_t> size_or(std::string_view key, std::int32_t fallback) const {
    return has(key) ? size(key) : Result<std::int32_t>(fallback);
  }
  // An error unless the key is missing or has this value.
  template <typename T>
  Status expect(std::string_view key, T expected) const {
    if (!has(key)) return ok_status();
    FLOTILLA_ASSIGN_OR_RETURN(const T value, get<T>(key, fmt::format("{}", expected)));
    if (value == expected) return ok_status();
    return invalid_argument(fmt::format("{} = {} is not supported, only {}", key, value, expected));
  }

 private:
  const std::map<std::string_view, GgufValue>& metadata_;
};

const GgufTensor* find_tensor(const GgufFile& file, std::string_view name) {
  for (const GgufTensor& tensor : file.tensors()) {
    if (tensor.name == name) return &tensor;
  }
  return nullptr;
}

// Row `from` of each head: 2j + s in the file is s * head_dim/2 + j here, for pair j and side s.
void unpair_rows(const TensorSpec& spec, std::vector<float>& values) {
  const std::int64_t head_dim = spec.rows / spec.gguf_paired_heads;
  std::vector<float> head(head_dim * spec.cols);
  for (std::int64_t h = 0; h < spec.gguf_paired_heads; ++h) {
    const auto begin = values.begin() + h * head_dim * spec.cols;
    for (std::int64_t from = 0; from < head_dim; ++from) {
      const std::int64_t to = from % 2 * (head_dim / 2) + from / 2;
      std::copy_n(begin + from * spec.cols, spec.cols, head.begin() + to * spec.cols);
    }
    std::copy(head.begin(), head.end(), begin);
  }
}

Result<std::vector<float>> read_tensor(const TensorSpec& spec, const GgufTensor& tensor) {
  const int dimensions = spec.kind == TensorKind::kMatrix ? 2 : 1;
  if (tensor.dimensions != dimensions || tensor.rows != spec.rows || tensor.cols != spec.cols) {
    return data_loss(fmt::format("{} dimensions, {} rows of {}; expected {} dimensions, {} rows of {}",
                                 tensor.dimensions, tensor.rows, tensor.cols, dimensions, spec.rows, spec.cols));
  }
  std::vector<float> values(spec.size());
  dequantize(tensor, values.data());
  FLOTILLA_RETURN_IF_ERROR(check_finite(values));
  if (spec.gguf_paired_heads > 0) unpair_rows(spec, values);
  return values;
}

// Types of tokens in tokenizer.ggml.token_type.
constexpr std::int64_t kNormalToken = 1;
constexpr std::int64_t kControlToken = 3;
constexpr std::int64_t kUserDefinedToken = 4;
constexpr std::int64_t kUnusedToken = 5;

// Unused tokens at the end are names that the converter gave to rows of the embedding without a token: no tokens here.
Status sort_tokens(std::vector<std::int64_t> types, TokenizerSpec& spec) {
  if (types.size() != spec.tokens.size()) {
    return invalid_argument(
        fmt::format("tokenizer.ggml.token_type has {} entries for {} tokens", types.size(), spec.tokens.size()));
  }
  while (!types.empty() && types.back() == kUnusedToken) types.pop_back();
  spec.tokens.resize(types.size());
  for (std::size_t i = 0; i < types.size(); ++i) {
    const auto id = static_cast<TokenId>(i);
    if (types[i] == kControlToken) {
      spec.special.push_back(id);
    } else if (types[i] == kUserDefinedToken) {
      spec.added.push_back(id);
    } else if (types[i] != kNormalToken) {
      return invalid_argument(fmt::format(
          "tokenizer.ggml.token_type of token {} is {}, expected 1, 3 or 4 (or 5 at the end)", id, types[i]));
    }
  }
  return ok_status();
}

}  // namespace

Result<ModelDescription> description_from_gguf(const GgufFile& file) {
  const MetadataReader metadata(file);
  ModelDescription model;
  FLOTILLA_ASSIGN_OR_RETURN(model.architecture, metadata.text("general.architecture"));
  const auto key = [&](std::string_view part) { return fmt::format("{}.{}", model.architecture, part); };
  FLOTILLA_RETURN_IF_ERROR(check_architecture(model.architecture));
  FLOTILLA_ASSIGN_OR_RETURN(model.layers, metadata.size(key("block_count")));
  FLOTILLA_ASSIGN_OR_RETURN(model.hidden, metadata.size(key("embedding_length")));
  FLOTILLA_ASSIGN_OR_RETURN(model.heads, metadata.size(key("attention.head_count")));
  FLOTILLA_ASSIGN_OR_RETURN(model.kv_heads, metadata.size_or(key("attention.head_count_kv"), model.heads));
  FLOTILLA_ASSIGN_OR_RETURN(model.ffn, metadata.size(key("feed_forward_length")));
  FLOTILLA_ASSIGN_OR_RETURN(model.context, metadata.size(key("context_length")));
  FLOTILLA_ASSIGN_OR_RETURN(const double epsilon, metadata.number(key("attention.layer_norm_rms_epsilon")));
  model.norm_epsilon = static_cast<float>(epsilon);
  model.rope_theta = 10000;  // the default of the format
  if (metadata.has(key("rope.freq_base"))) {
    FLOTILLA_ASSIGN_OR_RETURN(model.rope_theta, metadata.number(key("rope.freq_base")));
  }
  const std::int32_t quotient = model.heads > 0 ? model.hidden / model.heads : 0;
  FLOTILLA_ASSIGN_OR_RETURN(model.head_dim, metadata.size_or(key("attention.key_length"), quotient));
  if (!metadata.has(key("attention.key_length")) && std::int64_t{quotient} * model.heads != model.hidden) {
    return invalid_argument(
        fmt::format("{} = {} is not a multiple of {} heads", key("embedding_length"), model.hidden, model.heads));
  }
  const auto head_dim = static_cast<std::uint64_t>(model.head_dim);
  FLOTILLA_RETURN_IF_ERROR(metadata.expect<std::uint64_t>(key("attention.value_length"), head_dim));
  FLOTILLA_RETURN_IF_ERROR(metadata.expect<std::uint64_t>(key("rope.dimension_count"), head_dim));
  FLOTILLA_RETURN_IF_ERROR(metadata.expect<std::string_view>(key("rope.scaling.type"), "none"));
  FLOTILLA_RETURN_IF_ERROR(metadata.expect<std::uint64_t>(key("expert_count"), 0));

  const GgufTensor* embedding = find_tensor(file, "token_embd.weight");
  if (embedding == nullptr) return data_loss("tensor token_embd.weight is missing");
  model.vocabulary = static_cast<std::int32_t>(std::min<std::int64_t>(embedding->rows, INT32_MAX));
  FLOTILLA_RETURN_IF_ERROR(
      metadata.expect<std::uint64_t>(key("vocab_size"), static_cast<std::uint64_t>(embedding->rows)));
  model.tied_embeddings = find_tensor(file, "output.weight") == nullptr;
  return describe_model(std::move(model));
}

Result<TokenizerSpec> tokenizer_from_gguf(const GgufFile& file) {
  const MetadataReader metadata(file);
  TokenizerSpec spec;
  FLOTILLA_ASSIGN_OR_RETURN(const std::string_view kind, metadata.text("tokenizer.ggml.model"));
  if (kind != "gpt2")
    return invalid_argument(fmt::format("tokenizer.ggml.model = {} is not supported, only gpt2", kind));
  FLOTILLA_ASSIGN_OR_RETURN(spec.pre_tokenizer, metadata.text("tokenizer.ggml.pre"));
  FLOTILLA_RETURN_IF_ERROR(metadata.expect("tokenizer.ggml.add_bos_token", false));
  FLOTILLA_RETURN_IF_ERROR(metadata.expect("tokenizer.ggml.add_eos_token", false));
  FLOTILLA_RETURN_IF_ERROR(metadata.expect("tokenizer.ggml.add_space_prefix", false));

  FLOTILLA_ASSIGN_OR_RETURN(const auto tokens, metadata.texts("tokenizer.ggml.tokens"));
  spec.tokens.assign(tokens.begin(), tokens.end());
  FLOTILLA_ASSIGN_OR_RETURN(const auto types,
                            metadata.get<std::vector<std::int64_t>>("tokenizer.ggml.token_type", "a list of integers"));
  FLOTILLA_RETURN_IF_ERROR(sort_tokens(types, spec));
  FLOTILLA_ASSIGN_OR_RETURN(const auto merges, metadata.texts("tokenizer.ggml.merges"));
  for (const std::string_view merge : merges) {
    const std::size_t space = merge.find(' ');
    if (space == std::string_view::npos || merge.find(' ', space + 1) != std::string_view::npos) {
      return invalid_argument(fmt::format("tokenizer.ggml.merges[{}] is not two tokens", spec.merges.size()));
    }
    spec.merges.emplace_back(merge.substr(0, space), merge.substr(space + 1));
  }
  FLOTILLA_ASSIGN_OR_RETURN(spec.bos, metadata.size_or("tokenizer.ggml.bos_token_id", -1));
  FLOTILLA_ASSIGN_OR_RETURN(spec.eos, metadata.size_or("tokenizer.ggml.eos_token_id", -1));
  FLOTILLA_ASSIGN_OR_RETURN(spec.pad, metadata.size_or("tokenizer.ggml.padding_token_id", -1));
  if (metadata.has("tokenizer.chat_template")) {
    FLOTILLA_ASSIGN_OR_RETURN(spec.chat_template, metadata.text("tokenizer.chat_template"));
  }
  return spec;
}

Result<ModelWeights> weights_from_gguf(const GgufFile& file, ModelDescription description) {
  std::map<std::string_view, const GgufTensor*> tensors;
  for (const GgufTensor& tensor : file.tensors()) tensors.emplace(tensor.name, &tensor);
  ModelWeights weights{std::move(description), {}};
  for (const TensorSpec& spec : weights.description.tensors) {
    const auto found = tensors.find(spec.gguf_name);
    if (found == tensors.end()) return data_loss(fmt::format("tensor {} is missing", spec.gguf_name));
    FLOTILLA_ASSIGN_OR_RETURN(auto values, read_tensor(spec, *found->second).with_context("tensor " + spec.gguf_name));
    weights.tensors.push_back(std::move(values));
    tensors.erase(found);
  }
  if (!tensors.empty()) {
    return data_loss(
        fmt::format("tensor {} is not part of a {} model", tensors.begin()->first, weights.description.architecture));
  }
  return weights;
}

Result<Model> load_gguf_model(const std::filesystem::path& path) {
  const auto load = [](const GgufFile& file) -> Result<Model> {
    FLOTILLA_ASSIGN_OR_RETURN(ModelDescription description, description_from_gguf(file));
    FLOTILLA_ASSIGN_OR_RETURN(TokenizerSpec spec, tokenizer_from_gguf(file));
    Model model;
    FLOTILLA_ASSIGN_OR_RETURN(model.tokenizer, Tokenizer::create(std::move(spec)));
    FLOTILLA_RETURN_IF_ERROR(check_vocabulary(description, *model.tokenizer));
    FLOTILLA_ASSIGN_OR_RETURN(model.weights, weights_from_gguf(file, std::move(description)));
    return model;
  };
  FLOTILLA_ASSIGN_OR_RETURN(const GgufFile file, GgufFile::open(path));
  return load(file).with_context(path.string());
}

}  // namespace flotilla
