#include <functional>
#include <limits>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "model/model_import.h"
#include "model/safetensors.h"
#include "model/test_models.h"

namespace flotilla {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using ::testing::HasSubstr;

void expect_error(const Status& status, std::string_view why) {
  ASSERT_FALSE(status.ok()) << "accepted; expected: " << why;
  EXPECT_THAT(status.message(), HasSubstr(std::string(why)));
}

class LoadGguf : public testing::Test {
 protected:
  // A file that is whole but for what `change` does to its parts.
  struct Parts {
    GgufBuilder builder;
    ModelWeights weights = tiny_weights(tiny_description());
    bool sizes = true, tokenizer = true;
  };
  Result<Model> load(const std::function<void(Parts&)>& change) {
    Parts parts;
    change(parts);
    if (parts.sizes) put_tiny_sizes(parts.builder);
    if (parts.tokenizer) put_tiny_tokenizer(parts.builder);
    put_weights(parts.builder, parts.weights);
    const fs::path path = folder_.path() / "model.gguf";
    EXPECT_TRUE(write_file_atomically(path, parts.builder.build()).ok());
    return load_model(path);
  }
  // The sizes as they should be, but for those that `change` writes first. Keys must not be written twice.
  void expect_refused(const std::function<void(Parts&)>& change, std::string_view why) {
    const auto model = load(change);
    ASSERT_FALSE(model.ok()) << "accepted; expected: " << why;
    expect_error(model.status(), why);
    expect_error(model.status(), "model.gguf");
  }

  TemporaryFolder folder_;
};

ModelDescription padded_description(std::int32_t rows) {
  ModelDescription sizes = tiny_description();
  sizes.vocabulary = rows;
  return describe_model(std::move(sizes)).value();
}

void put_sizes_but(GgufBuilder& builder, std::string_view left_out) {
  builder.text("general.architecture", "llama");
  const std::pair<const char*, std::uint32_t> sizes[] = {
      {"block_count", 2},          {"context_length", 128},     {"embedding_length", 32},
      {"feed_forward_length", 64}, {"attention.head_count", 4}, {"attention.head_count_kv", 2},
      {"vocab_size", 259},
  };
  for (const auto& [key, value] : sizes) {
    if (key != left_out) builder.u32(fmt::format("llama.{}", key), value);
  }
  if (left_out != "attention.layer_norm_rms_epsilon") builder.f32("llama.attention.layer_norm_rms_epsilon", 1e-5f);
}

TEST_F(LoadGguf, GivesWeightsInHuggingFacesOrder) {
  const auto model = load([](Parts&) {});
  ASSERT_TRUE(model.ok()) << model.status().to_string();
  const ModelWeights expected = tiny_weights(tiny_description());
  EXPECT_EQ(model->weights.tensors, expected.tensors);
  EXPECT_EQ(model->weights.description.to_config_json(), expected.description.to_config_json());
  EXPECT_EQ(model->tokenizer->spec().eos, 258);
  EXPECT_EQ(model->tokenizer->spec().chat_template, "{{ messages }}");
  EXPECT_EQ(model->tokenizer->spec().special, (std::vector<TokenId>{257, 258}));
}

TEST_F(LoadGguf, AnOutputTensorMeansAHeadOfItsOwn) {
  const auto model = load([](Parts& parts) { parts.weights = tiny_weights(tiny_description(false)); });
  ASSERT_TRUE(model.ok()) << model.status().to_string();
  EXPECT_FALSE(model->weights.description.tied_embeddings);
  EXPECT_EQ(model->weights.tensors, tiny_weights(tiny_description(false)).tensors);
}

TEST_F(LoadGguf, OptionalKeysHaveTheDefaultsOfTheFormat) {
  const auto model = load([](Parts& parts) {
    parts.sizes = false;
    put_sizes_but(parts.builder, "vocab_size");
    parts.builder.u32("llama.attention.key_length", 8).f32("llama.rope.freq_base", 500.0f);
  });
  ASSERT_TRUE(model.ok()) << model.status().to_string();
  EXPECT_EQ(model->weights.description.rope_theta, 500);
  EXPECT_EQ(model->weights.description.vocabulary, 259);
}

TEST_F(LoadGguf, KeysThatAreMissingOrDoNotFitAreNamed) {
  for (const char* key : {"block_count", "context_length", "embedding_length", "feed_forward_length",
                          "attention.head_count", "attention.layer_norm_rms_epsilon"}) {
    expect_refused(
        [&](Parts& parts) {
          parts.sizes = false;
          put_sizes_but(parts.builder, key);
        },
        fmt::format("llama.{} is missing", key));
    expect_refused(
        [&](Parts& parts) {
          parts.sizes = false;
          put_sizes_but(parts.builder, key);
          parts.builder.text(fmt::format("llama.{}", key), "4");
        },
        fmt::format("llama.{} is not", key));
  }
  const auto with = [&](std::string_view key, std::uint32_t value, std::string_view why) {
    expect_refused(
        [&](Parts& parts) {
          parts.sizes = false;
          put_sizes_but(parts.builder, key);
          parts.builder.u32(fmt::format("llama.{}", key), value);
        },
        why);
  };
  with("block_count", 0, "layers = 0");
  with("block_count", 1u << 31, "expected less than 2^31");
  with("attention.head_count", 0, "not a multiple of 0 heads");
  with("attention.head_count", 5, "not a multiple of 5 heads");
  with("attention.head_count_kv", 3, "kv_heads = 3");
  with("attention.key_length", 7, "head_dim = 7 is odd");
  with("attention.value_length", 16, "attention.value_length = 16 is not supported, only 8");
  with("rope.dimension_count", 4, "rope.dimension_count = 4 is not supported, only 8");
  with("expert_count", 8, "expert_count");
  with("vocab_size", 260, "vocab_size = 260 is not supported, only 259");
  with("block_count", 3, "tensor blk.2.attn_norm.weight is missing");
  with("block_count", 1, "tensor blk.1.");
  with("feed_forward_length", 32,
       "tensor blk.0.ffn_gate.weight: 2 dimensions, 64 rows of 32; expected 2 dimensions, 32 rows of 32");
  expect_refused([](Parts& parts) { parts.builder.text("llama.rope.scaling.type", "linear"); },
                 "rope.scaling.type = linear");
}

TEST_F(LoadGguf, AnUnknownArchitectureIsNamedWithTheKnownOnes) {
  expect_refused(
      [](Parts& parts) {
        parts.sizes = false;
        parts.builder.text("general.architecture", "mamba");
      },
      "unknown architecture \"mamba\"; known: llama, qwen2");
  expect_refused([](Parts& parts) { parts.sizes = false; }, "general.architecture is missing");
}

TEST_F(LoadGguf, TensorsThatDoNotFitAreNamed) {
  expect_refused([](Parts& parts) { parts.weights.tensors.pop_back(); }, "tensor output_norm.weight is missing");
  expect_refused([](Parts& parts) { parts.weights.description.tensors[0].gguf_name = "other.weight"; },
                 "tensor token_embd.weight is missing");
  expect_refused([](Parts& parts) { parts.builder.tensor("rope_freqs.weight", {1}, 0, Bytes(4)); },
                 "tensor rope_freqs.weight is not part of a llama model");
  expect_refused([](Parts& parts) { parts.weights.description.tensors[1].kind = TensorKind::kMatrix; },
                 "tensor blk.0.attn_norm.weight: 2 dimensions");
  for (const auto& [value, why] : {std::pair{std::numeric_limits<float>::quiet_NaN(), "element 5 is NaN"},
                                   {-std::numeric_limits<float>::infinity(), "element 5 is infinite"}}) {
    expect_refused([&](Parts& parts) { parts.weights.tensors[1][5] = value; },
                   fmt::format("tensor blk.0.attn_norm.weight: {}", why));
  }
}

TEST_F(LoadGguf, TokenizersThatDoNotFitAreRefused) {
  const auto refused = [&](const std::function<void(GgufBuilder&)>& tokenizer, std::string_view why) {
    expect_refused(
        [&](Parts& parts) {
          parts.tokenizer = false;
          tokenizer(parts.builder);
        },
        why);
  };
  const std::vector<std::string> tokens = tiny_tokenizer_spec().tokens;
  const std::vector<std::int32_t> types(259, 1);
  const auto begin = [](GgufBuilder& b) {
    b.text("tokenizer.ggml.model", "gpt2").text("tokenizer.ggml.pre", "smollm");
  };
  refused([](GgufBuilder&) {}, "tokenizer.ggml.model is missing");
  refused([](GgufBuilder& b) { b.text("tokenizer.ggml.model", "llama"); }, "tokenizer.ggml.model = llama");
  refused([](GgufBuilder& b) { b.text("tokenizer.ggml.model", "gpt2"); }, "tokenizer.ggml.pre is missing");
  refused([&](GgufBuilder& b) { begin(b); }, "tokenizer.ggml.tokens is missing");
  refused(
      [&](GgufBuilder& b) {
        begin(b);
        b.texts("tokenizer.ggml.tokens", tokens);
      },
      "tokenizer.ggml.token_type is missing");
  refused(
      [&](GgufBuilder& b) {
        begin(b);
        b.texts("tokenizer.ggml.tokens", tokens).array<std::int32_t>("tokenizer.ggml.token_type", 5, {1});
      },
      "1 entries for 259 tokens");
  refused(
      [&](GgufBuilder& b) {
        begin(b);
        auto bytes = types;
        bytes[9] = 6;
        b.texts("tokenizer.ggml.tokens", tokens).array("tokenizer.ggml.token_type", 5, bytes);
      },
      "token_type of token 9 is 6");
  refused(
      [&](GgufBuilder& b) {
        begin(b);
        auto bytes = types;
        bytes[9] = 5;
        b.texts("tokenizer.ggml.tokens", tokens).array("tokenizer.ggml.token_type", 5, bytes);
      },
      "token_type of token 9 is 5, expected 1, 3 or 4 (or 5 at the end)");
  refused(
      [&](GgufBuilder& b) {
        begin(b);
        b.texts("tokenizer.ggml.tokens", tokens).array("tokenizer.ggml.token_type", 5, types);
      },
      "tokenizer.ggml.merges is missing");
  for (const char* merge : {"th", "t h e"}) {
    refused(
        [&](GgufBuilder& b) {
          begin(b);
          b.texts("tokenizer.ggml.tokens", tokens).array("tokenizer.ggml.token_type", 5, types);
          b.texts("tokenizer.ggml.merges", {merge});
        },
        "tokenizer.ggml.merges[0] is not two tokens");
  }
  for (const char* flag : {"add_eos_token", "add_space_prefix"}) {
    expect_refused(
        [&](Parts& parts) { parts.builder.number(fmt::format("tokenizer.ggml.{}", flag), 7, std::uint8_t{1}); },
        fmt::format("{} = true is not supported", flag));
  }
  for (const std::int32_t rows : {258, 1284}) {
    expect_refused(
        [&](Parts& parts) {
          parts.sizes = false;
          put_sizes_but(parts.builder, "vocab_size");
          parts.weights = tiny_weights(padded_description(rows));
        },
        fmt::format("the tokenizer has 259 tokens, the embedding {} rows; expected as many rows, or up to 1024 more",
                    rows));
  }
}

TEST_F(LoadGguf, RowsWithoutATokenMayHaveANameOrNone) {
  const auto padded = [](Parts& parts) {
    parts.sizes = false;
    put_sizes_but(parts.builder, "vocab_size");
    parts.weights = tiny_weights(padded_description(300));
  };
  const auto without = load(padded);
  ASSERT_TRUE(without.ok()) << without.status().to_string();
  const auto with = load([&](Parts& parts) {
    padded(parts);
    parts.tokenizer = false;
    std::vector<std::string> tokens = tiny_tokenizer_spec().tokens;
    std::vector<std::int32_t> types(259, 1);
    types[257] = types[258] = 3;
    types.resize(300, 5);
    while (tokens.size() < 300) tokens.push_back(fmt::format("[PAD{}]", tokens.size()));
    parts.builder.text("tokenizer.ggml.model", "gpt2")
        .text("tokenizer.ggml.pre", "smollm")
        .texts("tokenizer.ggml.tokens", tokens)
        .array("tokenizer.ggml.token_type", 5, types)
        .texts("tokenizer.ggml.merges", {"t h"});
  });
  ASSERT_TRUE(with.ok()) << with.status().to_string();
  for (const Model* model : {&*without, &*with}) {
    EXPECT_EQ(model->weights.description.vocabulary, 300);
    EXPECT_EQ(model->tokenizer->vocabulary(), 259);
    EXPECT_EQ(model->tokenizer->decode(std::vector<TokenId>{'t', 259, 299, 'h'}, true), "th");
  }
  EXPECT_EQ(with->tokenizer->digest(), without->tokenizer->digest());
}

class ModelFolder : public testing::Test {
 protected:
  void SetUp() override {
    tokenizer_ = Tokenizer::create(tiny_tokenizer_spec()).value();
    ASSERT_TRUE(save_model_folder(path(), weights_, *tokenizer_).ok());
  }
  fs::path path() const { return folder_.path() / "model"; }
  void rewrite(const std::string& name, const std::function<void(json&)>& change) {
    json content = json::parse(read_text_file(path() / name).value());
    change(content);
    ASSERT_TRUE(write_file_atomically(path() / name, content.dump()).ok());
  }
  void rewrite_weights(const std::function<void(std::vector<TensorToWrite>&)>& change) {
    std::vector<TensorToWrite> tensors;
    for (std::size_t i = 0; i < weights_.tensors.size(); ++i) {
      const TensorSpec& spec = weights_.description.tensors[i];
      const TensorShape shape =
          spec.kind == TensorKind::kMatrix ? TensorShape{spec.rows, spec.cols} : TensorShape{spec.cols};
      tensors.push_back({spec.name, DType::kF32, shape, as_bytes(std::span<const float>(weights_.tensors[i]))});
    }
    change(tensors);
    ASSERT_TRUE(write_safetensors_file(path() / "model.safetensors", tensors).ok());
  }
  void expect_refused(std::string_view why) { expect_error(load_model(path()).status(), why); }

  TemporaryFolder folder_;
  ModelWeights weights_ = tiny_weights(tiny_description());
  std::shared_ptr<const Tokenizer> tokenizer_;
};

TEST_F(ModelFolder, IsReadAsItWasWritten) {
  const auto model = load_model(path());
  ASSERT_TRUE(model.ok()) << model.status().to_string();
  EXPECT_EQ(model->weights.tensors, weights_.tensors);
  EXPECT_EQ(model->weights.description.to_config_json(), weights_.description.to_config_json());
  EXPECT_EQ(model->tokenizer->digest(), tokenizer_->digest());
  EXPECT_EQ(model->tokenizer->spec().eos, 258);
  EXPECT_EQ(model->tokenizer->spec().chat_template, "{{ messages }}");
}

TEST_F(ModelFolder, HalfPrecisionIsWidened) {
  const std::vector<std::uint16_t> bf16(32, 0xbfc0);
  const std::vector<std::uint16_t> f16(32, 0x3800);
  rewrite_weights([&](auto& tensors) {
    tensors[1].dtype = DType::kBF16;
    tensors[1].bytes = as_bytes(std::span<const std::uint16_t>(bf16));
    tensors.back().dtype = DType::kF16;
    tensors.back().bytes = as_bytes(std::span<const std::uint16_t>(f16));
  });
  const auto model = load_model(path());
  ASSERT_TRUE(model.ok()) << model.status().to_string();
  EXPECT_EQ(model->weights.tensors[1], std::vector<float>(32, -1.5f));
  EXPECT_EQ(model->weights.tensors.back(), std::vector<float>(32, 0.5f));
}

TEST_F(ModelFolder, TokensAndTemplateOfOthersComeFromTheTokenizersConfiguration) {
  rewrite("tokenizer.json", [](json& content) { content["model"].erase("flotilla"); });
  rewrite("tokenizer_config.json", [](json& content) {
    content["bos_token"] = {{"content", "<|im_start|>"}, {"special", true}};
    content["pad_token"] = nullptr;
  });
  const auto model = load_model(path());
  ASSERT_TRUE(model.ok()) << model.status().to_string();
  EXPECT_EQ(model->tokenizer->spec().bos, 257);
  EXPECT_EQ(model->tokenizer->spec().eos, 258);
  EXPECT_EQ(model->tokenizer->spec().pad, -1);
  EXPECT_EQ(model->tokenizer->spec().chat_template, "{{ messages }}");
  ASSERT_TRUE(write_file_atomically(path() / "chat_template.jinja", "{{ other }}").ok());
  EXPECT_EQ(load_model(path())->tokenizer->spec().chat_template, "{{ other }}");

  rewrite("tokenizer_config.json", [](json& content) { content["eos_token"] = "<eos>"; });
  expect_refused("eos_token = \"<eos>\" is not in the vocabulary");
  rewrite("tokenizer_config.json", [](json& content) { content["eos_token"] = 2; });
  expect_refused("eos_token is not a token");
  rewrite("tokenizer_config.json", [](json& content) { content = json::array(); });
  expect_refused("tokenizer_config.json: not a JSON object");
}

TEST_F(ModelFolder, AMissingFileIsNamed) {
  for (const char* name : {"config.json", "tokenizer.json", "model.safetensors"}) {
    const fs::path away = folder_.path() / "away";
    fs::rename(path() / name, away);
    const auto model = load_model(path());
    EXPECT_EQ(model.status().code(), StatusCode::kNotFound);
    expect_error(model.status(), name);
    fs::rename(away, path() / name);
  }
  EXPECT_EQ(load_model(folder_.path() / "none").status().code(), StatusCode::kNotFound);
  fs::rename(path() / "model.safetensors", path() / "model.safetensors.index.json");
  expect_refused("weights in several files cannot be read");
}

TEST_F(ModelFolder, TensorsThatDoNotFitAreNamed) {
  rewrite_weights([](auto& tensors) { tensors.pop_back(); });
  expect_refused("model.safetensors: tensor model.norm.weight is missing");
  rewrite_weights([](auto& tensors) { tensors.push_back({"lm_head.weight", DType::kU8, {1}, as_bytes("x")}); });
  expect_refused("tensor lm_head.weight is not part of a llama model with tied embeddings");
  rewrite_weights([](auto& tensors) { std::swap(tensors[0].shape[0], tensors[0].shape[1]); });
  expect_refused("tensor model.embed_tokens.weight: shape [32, 259], expected [259, 32]");
  rewrite_weights([](auto& tensors) { tensors[1].dtype = DType::kI32; });
  expect_refused("tensor model.layers.0.input_layernorm.weight: dtype I32, expected F32, F16 or BF16");
  weights_.tensors[1][5] = std::numeric_limits<float>::quiet_NaN();
  rewrite_weights([](auto&) {});
  expect_refused("tensor model.layers.0.input_layernorm.weight: element 5 is NaN");
}

TEST_F(ModelFolder, ATokenizerOfAnotherModelIsRefused) {
  rewrite("config.json", [](json& content) { content["vocab_size"] = 258; });
  expect_refused("the tokenizer has 259 tokens, the embedding 258 rows");
  rewrite("config.json", [](json& content) { content["vocab_size"] = 5000; });
  expect_refused("the tokenizer has 259 tokens, the embedding 5000 rows");
  EXPECT_EQ(save_model_folder(path(), tiny_weights(padded_description(258)), *tokenizer_).code(),
            StatusCode::kInvalidArgument);
}

TEST_F(ModelFolder, MayHaveMoreRowsThanTokens) {
  ASSERT_TRUE(save_model_folder(path(), tiny_weights(padded_description(320)), *tokenizer_).ok());
  const auto model = load_model(path());
  ASSERT_TRUE(model.ok()) << model.status().to_string();
  EXPECT_EQ(model->weights.description.vocabulary, 320);
  EXPECT_EQ(model->tokenizer->vocabulary(), 259);
}

TEST_F(ModelFolder, WeightsThatDoNotFitTheirDescriptionAreNotWritten) {
  ModelWeights bad = weights_;
  bad.tensors[3].pop_back();
  EXPECT_EQ(save_model_folder(path(), bad, *tokenizer_).code(), StatusCode::kInvalidArgument);
  bad.tensors.pop_back();
  EXPECT_EQ(save_model_folder(path(), bad, *tokenizer_).code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(load_model(path()).ok());
}

}  // namespace
}  // namespace flotilla
