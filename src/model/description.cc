#include "model/description.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "model/strict_json.h"

namespace flotilla {
namespace {

using nlohmann::json;

constexpr std::int64_t kMaxParameters = std::int64_t{1} << 40;
constexpr std::int32_t kMaxLayers = 4096;
constexpr std::int64_t kMaxRow = 1 << 27;  // what weight sync can count (docs/formats/delta.md)

// Adds tensors to a description and hands out their indices.
class TensorList {
 public:
  explicit TensorList(std::vector<TensorSpec>& tensors) : tensors_(tensors) {}

  TensorIndex matrix(std::string name, std::string gguf_name, std::int64_t rows, std::int64_t cols,
                     std::int32_t gguf_paired_heads = 0) {
    return add({std::move(name), std::move(gguf_name), TensorKind::kMatrix, rows, cols, gguf_paired_heads});
  }
  TensorIndex vector(std::string name, std::string gguf_name, std::int64_t size) {
    return add({std::move(name), std::move(gguf_name), TensorKind::kVector, 1, size, 0});
  }

 private:
  TensorIndex add(TensorSpec spec) {
    tensors_.push_back(std::move(spec));
    return static_cast<TensorIndex>(tensors_.size() - 1);
  }
  std::vector<TensorSpec>& tensors_;
};

// What sets the members of the family apart.
struct LlamaFamily {
  bool paired_rows_in_gguf = false;  // see TensorSpec::gguf_paired_heads
  bool qkv_bias = false;
};

void describe_llama_family(ModelDescription& model, const LlamaFamily& family) {
  TensorList list(model.tensors);
  const auto paired = [&](std::int32_t heads) { return family.paired_rows_in_gguf ? heads : 0; };
  const std::int64_t q_rows = std::int64_t{model.heads} * model.head_dim;
  const std::int64_t kv_rows = std::int64_t{model.kv_heads} * model.head_dim;
  model.embedding = list.matrix("model.embed_tokens.weight", "token_embd.weight", model.vocabulary, model.hidden);
  for (int i = 0; i < model.layers; ++i) {
    const auto hf = [i](std::string_view part) { return fmt::format("model.layers.{}.{}.weight", i, part); };
    const auto gguf = [i](std::string_view part) { return fmt::format("blk.{}.{}.weight", i, part); };
    DecoderBlock block;
    block.attention_norm = list.vector(hf("input_layernorm"), gguf("attn_norm"), model.hidden);
    block.q = list.matrix(hf("self_attn.q_proj"), gguf("attn_q"), q_rows, model.hidden, paired(model.heads));
    block.k = list.matrix(hf("self_attn.k_proj"), gguf("attn_k"), kv_rows, model.hidden, paired(model.kv_heads));
    block.v = list.matrix(hf("self_attn.v_proj"), gguf("attn_v"), kv_rows, model.hidden);
    block.o = list.matrix(hf("self_attn.o_proj"), gguf("attn_output"), model.hidden, q_rows);
    if (family.qkv_bias) {
      const auto bias = [&](const char* hf_part, const char* gguf_part, std::int64_t size) {
        return list.vector(fmt::format("model.layers.{}.self_attn.{}.bias", i, hf_part),
                           fmt::format("blk.{}.{}.bias", i, gguf_part), size);
      };
      block.q_bias = bias("q_proj", "attn_q", q_rows);
      block.k_bias = bias("k_proj", "attn_k", kv_rows);
      block.v_bias = bias("v_proj", "attn_v", kv_rows);
    }
    block.mlp_norm = list.vector(hf("post_attention_layernorm"), gguf("ffn_norm"), model.hidden);
    block.gate = list.matrix(hf("mlp.gate_proj"), gguf("ffn_gate"), model.ffn, model.hidden);
    block.up = list.matrix(hf("mlp.up_proj"), gguf("ffn_up"), model.ffn, model.hidden);
    block.down = list.matrix(hf("mlp.down_proj"), gguf("ffn_down"), model.hidden, model.ffn);
    model.blocks.push_back(block);
  }
  model.final_norm = list.vector("model.norm.weight", "output_norm.weight", model.hidden);
  model.head = model.tied_embeddings ? model.embedding
                                     : list.matrix("lm_head.weight", "output.weight", model.vocabulary, model.hidden);
}

void describe_llama(ModelDescription& model) { describe_llama_family(model, {.paired_rows_in_gguf = true}); }
void describe_qwen2(ModelDescription& model) { describe_llama_family(model, {.qkv_bias = true}); }

// What config.json says of a model beyond the sizes, with the only value that the blocks compute.
Status check_config(const json& config) {
  const std::pair<const char*, json> fixed[] = {
      {"hidden_act", "silu"},         {"attention_bias", false},    {"mlp_bias", false},
      {"rope_interleaved", false},    {"rope_scaling", nullptr},    {"quantization_config", nullptr},
      {"partial_rotary_factor", 1.0}, {"use_sliding_window", false}};
  for (const auto& [field, value] : fixed) {
    if (config.contains(field) && config[field] != value) {
      return invalid_argument(
          fmt::format("{} = {} is not supported, only {}", field, config[field].dump(), value.dump()));
    }
  }
  if (config.contains("layer_types")) {
    const json& types = config["layer_types"];
    if (!types.is_array()) return invalid_argument("layer_types is not a list");
    for (const json& type : types) {
      if (type != "full_attention") {
        return invalid_argument(fmt::format("layer_types has {}; only \"full_attention\" is supported", type.dump()));
      }
    }
  }
  return ok_status();
}

// One architecture: its name in config.json (model_type) and GGUF, the class in config.json, and its tensors.
struct Architecture {
  std::string_view name;
  std::string_view class_name;
  void (*describe)(ModelDescription& model);
};
constexpr Architecture kArchitectures[] = {{"llama", "LlamaForCausalLM", describe_llama},
                                           {"qwen2", "Qwen2ForCausalLM", describe_qwen2}};

Result<const Architecture*> find_architecture(std::string_view name) {
  for (const Architecture& architecture : kArchitectures) {
    if (architecture.name == name) return &architecture;
  }
  std::vector<std::string_view> known;
  for (const Architecture& architecture : kArchitectures) known.push_back(architecture.name);
  return invalid_argument(fmt::format("unknown architecture \"{}\"; known: {}", name, fmt::join(known, ", ")));
}

Status check_sizes(const ModelDescription& model) {
  const std::pair<const char*, std::int32_t> sizes[] = {
      {"layers", model.layers},     {"hidden", model.hidden},         {"heads", model.heads},
      {"kv_heads", model.kv_heads}, {"head_dim", model.head_dim},     {"ffn", model.ffn},
      {"context", model.context},   {"vocabulary", model.vocabulary},
  };
  for (const auto& [name, size] : sizes) {
    if (size <= 0) return invalid_argument(fmt::format("{} = {}, expected at least 1", name, size));
  }
  if (model.layers > kMaxLayers) {
    return invalid_argument(fmt::format("layers = {}, expected at most {}", model.layers, kMaxLayers));
  }
  if (model.heads % model.kv_heads != 0) {
    return invalid_argument(fmt::format("heads = {} is not a multiple of kv_heads = {}", model.heads, model.kv_heads));
  }
  if (model.head_dim % 2 != 0) return invalid_argument(fmt::format("head_dim = {} is odd", model.head_dim));
  if (!std::isfinite(model.norm_epsilon) || model.norm_epsilon <= 0) {
    return invalid_argument(fmt::format("norm_epsilon = {}, expected a number > 0", model.norm_epsilon));
  }
  if (!std::isfinite(model.rope_theta) || model.rope_theta <= 0) {
    return invalid_argument(fmt::format("rope_theta = {}, expected a number > 0", model.rope_theta));
  }
  // An upper bound of the parameters, in doubles so that nothing overflows before it is known to be small.
  const double hidden = model.hidden;
  const double block = hidden * (4.0 * model.heads * model.head_dim + 3.0 * model.ffn + 2.0);
  if (2.0 * model.vocabulary * hidden + model.layers * block + hidden > static_cast<double>(kMaxParameters)) {
    return invalid_argument(fmt::format(
        "vocabulary, hidden, heads, head_dim, ffn and layers give more than {} parameters", kMaxParameters));
  }
  for (const std::int64_t row :
       {std::int64_t{model.hidden}, std::int64_t{model.ffn}, std::int64_t{model.heads} * model.head_dim}) {
    if (row > kMaxRow) return invalid_argument(fmt::format("a row of {} weights, expected at most {}", row, kMaxRow));
  }
  return ok_status();
}

// Reads typed fields of config.json; each error names the field.
class ConfigReader {
 public:
  explicit ConfigReader(const json& config) : config_(config) {}

  bool has(const char* field) const { return config_.contains(field) && !config_[field].is_null(); }

  Result<std::int32_t> size(const char* field) const {
    if (!has(field)) return invalid_argument(fmt::format("{} is missing", field));
    const json& value = config_[field];
    if (!value.is_number_integer() || value < 1 || value > std::numeric_limits<std::int32_t>::max()) {
      return invalid_argument(fmt::format("{} = {}, expected an integer in [1, 2^31)", field, value.dump()));
    }
    return value.get<std::int32_t>();
  }
  Result<double> number(const char* field) const {
    if (!has(field)) return invalid_argument(fmt::format("{} is missing", field));
    if (!config_[field].is_number()) {
      return invalid_argument(fmt::format("{} = {}, expected a number", field, config_[field].dump()));
    }
    return config_[field].get<double>();
  }
  Result<bool> boolean(const char* field, bool fallback) const {
    if (!has(field)) return fallback;
    if (!config_[field].is_boolean()) {
      return invalid_argument(fmt::format("{} = {}, expected true or false", field, config_[field].dump()));
    }
    return config_[field].get<bool>();
  }
  Result<std::string> text(const char* field) const {
    if (!has(field)) return invalid_argument(fmt::format("{} is missing", field));
    if (!config_[field].is_string()) {
      return invalid_argument(fmt::format("{} = {}, expected a string", field, config_[field].dump()));
    }
    return config_[field].get<std::string>();
  }

 private:
  const json& config_;
};

// At the top level, or inside rope_parameters as transformers 5 writes it.
Result<double> rope_theta_of(const json& config) {
  if (!ConfigReader(config).has("rope_parameters")) return ConfigReader(config).number("rope_theta");
  const json& rope = config["rope_parameters"];
  if (!rope.is_object()) return invalid_argument("rope_parameters is not an object");
  if (rope.contains("rope_type") && rope["rope_type"] != "default") {
    return invalid_argument(fmt::format("rope_type = {} is not supported, only \"default\"", rope["rope_type"].dump()));
  }
  return ConfigReader(rope).number("rope_theta");
}

// The double that prints as the float does: 1e-05, not 9.999999747378752e-06.
double shortest(float value) {
  const double candidate = std::strtod(fmt::format("{}", value).c_str(), nullptr);
  return static_cast<float>(candidate) == value ? candidate : value;
}

}  // namespace

Status check_architecture(std::string_view name) { return find_architecture(name).status(); }

std::int64_t ModelDescription::parameters() const {
  std::int64_t sum = 0;
  for (const TensorSpec& tensor : tensors) sum += tensor.size();
  return sum;
}

std::optional<TensorIndex> ModelDescription::find(std::string_view name) const {
  const auto found = std::find_if(tensors.begin(), tensors.end(), [&](const auto& spec) { return spec.name == name; });
  if (found == tensors.end()) return std::nullopt;
  return static_cast<TensorIndex>(found - tensors.begin());
}

Result<ModelDescription> describe_model(ModelDescription sizes) {
  FLOTILLA_ASSIGN_OR_RETURN(const Architecture* architecture, find_architecture(sizes.architecture));
  FLOTILLA_RETURN_IF_ERROR(check_sizes(sizes));
  sizes.tensors.clear();
  sizes.blocks.clear();
  architecture->describe(sizes);
  return sizes;
}

std::string ModelDescription::to_config_json() const {
  const auto known = find_architecture(architecture);
  FLOTILLA_CHECK(known.ok());
  nlohmann::ordered_json config;
  config["architectures"] = {(*known)->class_name};
  config["model_type"] = architecture;
  config["num_hidden_layers"] = layers;
  config["hidden_size"] = hidden;
  config["num_attention_heads"] = heads;
  config["num_key_value_heads"] = kv_heads;
  config["head_dim"] = head_dim;
  config["intermediate_size"] = ffn;
  config["hidden_act"] = "silu";
  config["vocab_size"] = vocabulary;
  config["max_position_embeddings"] = context;
  config["rms_norm_eps"] = shortest(norm_epsilon);
  config["rope_theta"] = rope_theta;
  config["tie_word_embeddings"] = tied_embeddings;
  config["torch_dtype"] = "float32";
  return config.dump(2) + "\n";
}

Result<ModelDescription> ModelDescription::from_config_json(std::string_view text) {
  FLOTILLA_ASSIGN_OR_RETURN(const json config, parse_strict_json(text));
  if (!config.is_object()) return invalid_argument("the configuration of a model is a JSON object");
  const ConfigReader reader(config);
  ModelDescription model;
  FLOTILLA_ASSIGN_OR_RETURN(model.architecture, reader.text("model_type"));
  FLOTILLA_RETURN_IF_ERROR(check_architecture(model.architecture));
  FLOTILLA_RETURN_IF_ERROR(check_config(config));
  FLOTILLA_ASSIGN_OR_RETURN(model.layers, reader.size("num_hidden_layers"));
  FLOTILLA_ASSIGN_OR_RETURN(model.hidden, reader.size("hidden_size"));
  FLOTILLA_ASSIGN_OR_RETURN(model.heads, reader.size("num_attention_heads"));
  model.kv_heads = model.heads;
  if (reader.has("num_key_value_heads")) {
    FLOTILLA_ASSIGN_OR_RETURN(model.kv_heads, reader.size("num_key_value_heads"));
  }
  if (reader.has("head_dim")) {
    FLOTILLA_ASSIGN_OR_RETURN(model.head_dim, reader.size("head_dim"));
  } else if (model.hidden % model.heads == 0) {
    model.head_dim = model.hidden / model.heads;
  } else {
    return invalid_argument(fmt::format("head_dim is missing, and hidden_size = {} is not a multiple of {} heads",
                                        model.hidden, model.heads));
  }
  FLOTILLA_ASSIGN_OR_RETURN(model.ffn, reader.size("intermediate_size"));
  FLOTILLA_ASSIGN_OR_RETURN(model.vocabulary, reader.size("vocab_size"));
  FLOTILLA_ASSIGN_OR_RETURN(model.context, reader.size("max_position_embeddings"));
  FLOTILLA_ASSIGN_OR_RETURN(const double epsilon, reader.number("rms_norm_eps"));
  model.norm_epsilon = static_cast<float>(epsilon);
  FLOTILLA_ASSIGN_OR_RETURN(model.rope_theta, rope_theta_of(config));
  FLOTILLA_ASSIGN_OR_RETURN(model.tied_embeddings, reader.boolean("tie_word_embeddings", false));
  return describe_model(std::move(model));
}

}  // namespace flotilla
