#include "model/description.h"

#include <functional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "model/published_sizes.h"

namespace flotilla {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

// The fields of SmolLM2-135M-Instruct as its authors publish them.
json smollm2_config() {
  return json::parse(R"({"architectures":["LlamaForCausalLM"],"attention_bias":false,"attention_dropout":0.0,
    "bos_token_id":1,"eos_token_id":2,"hidden_act":"silu","hidden_size":576,"initializer_range":0.041666666666666664,
    "intermediate_size":1536,"is_llama_config":true,"max_position_embeddings":8192,"mlp_bias":false,
    "model_type":"llama","num_attention_heads":9,"num_hidden_layers":30,"num_key_value_heads":3,"pad_token_id":2,
    "pretraining_tp":1,"rms_norm_eps":1e-05,"rope_interleaved":false,"rope_scaling":null,"rope_theta":100000,
    "tie_word_embeddings":true,"torch_dtype":"bfloat16","use_cache":true,"vocab_size":49152})");
}

void expect_refused(const std::function<void(json&)>& change, std::string_view why) {
  json config = smollm2_config();
  change(config);
  const auto model = ModelDescription::from_config_json(config.dump());
  ASSERT_FALSE(model.ok()) << "accepted; expected: " << why;
  EXPECT_EQ(model.status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(model.status().message(), HasSubstr(std::string(why)));
}

void expect_refused(const std::function<void(ModelDescription&)>& change, std::string_view why) {
  ModelDescription sizes = smollm2_135m();
  change(sizes);
  const auto model = describe_model(sizes);
  ASSERT_FALSE(model.ok()) << "accepted; expected: " << why;
  EXPECT_EQ(model.status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(model.status().message(), HasSubstr(std::string(why)));
}

TEST(Description, SmolLm2HasTheTensorsOfHuggingFace) {
  const auto model = describe_model(smollm2_135m());
  ASSERT_TRUE(model.ok()) << model.status().to_string();
  EXPECT_EQ(model->parameters(), 134515008);  // as its authors count
  EXPECT_EQ(model->tensors.size(), 272u);
  EXPECT_EQ(model->head, model->embedding);
  const DecoderBlock& block = model->blocks.at(29);
  const TensorSpec& k = model->tensors[block.k];
  EXPECT_EQ(k.name, "model.layers.29.self_attn.k_proj.weight");
  EXPECT_EQ(k.gguf_name, "blk.29.attn_k.weight");
  EXPECT_EQ(k.rows, 192);
  EXPECT_EQ(k.cols, 576);
  EXPECT_EQ(k.gguf_paired_heads, 3);
  const TensorSpec& norm = model->tensors[block.mlp_norm];
  EXPECT_EQ(norm.name, "model.layers.29.post_attention_layernorm.weight");
  EXPECT_EQ(norm.kind, TensorKind::kVector);
  EXPECT_EQ(norm.rows, 1);
  EXPECT_EQ(norm.cols, 576);
  EXPECT_FALSE(block.q_bias.has_value());
  EXPECT_EQ(model->find("model.norm.weight"), model->final_norm);
  EXPECT_EQ(model->find("lm_head.weight"), std::nullopt);
}

TEST(Description, AnUntiedHeadIsATensorOfItsOwn) {
  ModelDescription sizes = smollm2_135m();
  sizes.tied_embeddings = false;
  const auto model = describe_model(sizes);
  ASSERT_TRUE(model.ok());
  EXPECT_EQ(model->tensors[model->head].name, "lm_head.weight");
  EXPECT_EQ(model->tensors[model->head].gguf_name, "output.weight");
  EXPECT_EQ(model->parameters(), 134515008 + 49152 * 576);
}

TEST(Description, Qwen2IsALlamaWithBiasesWhoseGgufKeepsTheOrderOfRows) {
  const auto model = describe_model(qwen25_05b());
  ASSERT_TRUE(model.ok()) << model.status().to_string();
  EXPECT_EQ(model->parameters(), 494032768);  // Qwen2.5-0.5B, as its authors count
  const DecoderBlock& block = model->blocks.at(23);
  EXPECT_EQ(model->tensors[block.k].gguf_paired_heads, 0);
  const TensorSpec& bias = model->tensors[block.k_bias.value()];
  EXPECT_EQ(bias.name, "model.layers.23.self_attn.k_proj.bias");
  EXPECT_EQ(bias.gguf_name, "blk.23.attn_k.bias");
  EXPECT_EQ(bias.kind, TensorKind::kVector);
  EXPECT_EQ(bias.cols, 128);
}

TEST(Description, DescribingTwiceChangesNothing) {
  const auto once = describe_model(smollm2_135m());
  const auto twice = describe_model(*once);
  EXPECT_EQ(twice->tensors.size(), once->tensors.size());
  EXPECT_EQ(twice->blocks.size(), once->blocks.size());
}

TEST(Description, ReadsTheConfigOfItsAuthors) {
  const auto model = ModelDescription::from_config_json(smollm2_config().dump());
  ASSERT_TRUE(model.ok()) << model.status().to_string();
  EXPECT_EQ(model->parameters(), 134515008);
  EXPECT_EQ(model->head_dim, 64);
  EXPECT_EQ(model->norm_epsilon, 1e-5f);
  EXPECT_EQ(model->rope_theta, 100000);
  EXPECT_TRUE(model->tied_embeddings);
}

TEST(Description, AConfigSurvivesWritingAndReading) {
  const auto model = describe_model(smollm2_135m());
  const std::string text = model->to_config_json();
  EXPECT_THAT(text, HasSubstr("\"rms_norm_eps\": 1e-05"));
  const auto again = ModelDescription::from_config_json(text);
  ASSERT_TRUE(again.ok()) << again.status().to_string();
  EXPECT_EQ(again->to_config_json(), text);
  EXPECT_EQ(again->norm_epsilon, model->norm_epsilon);
  EXPECT_EQ(again->kv_heads, 3);
  EXPECT_EQ(again->context, 8192);
}

TEST(Description, FieldsThatHuggingFaceLeavesOutHaveItsDefaults) {
  json config = smollm2_config();
  config.erase("num_key_value_heads");
  config.erase("tie_word_embeddings");
  config.erase("rope_theta");
  config["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 5000.0}};
  const auto model = ModelDescription::from_config_json(config.dump());
  ASSERT_TRUE(model.ok()) << model.status().to_string();
  EXPECT_EQ(model->kv_heads, 9);
  EXPECT_FALSE(model->tied_embeddings);
  EXPECT_EQ(model->rope_theta, 5000);
}

TEST(Description, AnUnknownArchitectureIsNamedWithTheKnownOnes) {
  expect_refused(
      [](json& c) {
        c["layer_types"] = {"full_attention", "sliding_attention"};
      },
      "layer_types has \"sliding_attention\"");
  expect_refused([](json& c) { c["layer_types"] = 1; }, "layer_types is not a list");
  expect_refused([](json& c) { c["model_type"] = "mamba"; }, "unknown architecture \"mamba\"; known: llama, qwen2");
  expect_refused([](ModelDescription& m) { m.architecture = "gpt2"; },
                 "unknown architecture \"gpt2\"; known: llama, qwen2");
}

TEST(Description, AMissingOrMistypedFieldIsNamed) {
  for (const char* field :
       {"model_type", "num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size", "vocab_size",
        "max_position_embeddings", "rms_norm_eps", "rope_theta"}) {
    expect_refused([&](json& c) { c.erase(field); }, std::string(field) + " is missing");
    expect_refused([&](json& c) { c[field] = json::array(); }, std::string(field) + " = []");
  }
  for (const json& value : {json(0), json(-1), json(1.5), json(std::int64_t{1} << 31), json(UINT64_MAX), json("9")}) {
    expect_refused([&](json& c) { c["num_key_value_heads"] = value; }, "num_key_value_heads = ");
  }
  expect_refused([](json& c) { c["tie_word_embeddings"] = 1; }, "tie_word_embeddings = 1");
  expect_refused([](json& c) { c["head_dim"] = "64"; }, "head_dim");
  expect_refused([](json& c) { c["num_attention_heads"] = 10; }, "head_dim is missing");
  expect_refused([](json& c) { c = json::array(); }, "JSON object");
}

TEST(Description, WhatTheBlocksDoNotComputeIsRefused) {
  expect_refused([](json& c) { c["hidden_act"] = "gelu"; }, "hidden_act = \"gelu\" is not supported, only \"silu\"");
  expect_refused([](json& c) { c["attention_bias"] = true; }, "attention_bias");
  expect_refused([](json& c) { c["mlp_bias"] = true; }, "mlp_bias");
  expect_refused([](json& c) { c["rope_interleaved"] = true; }, "rope_interleaved");
  expect_refused([](json& c) { c["rope_scaling"] = {{"type", "linear"}}; }, "rope_scaling");
  expect_refused([](json& c) { c["rope_parameters"] = 1; }, "rope_parameters is not an object");
  expect_refused([](json& c) { c["rope_parameters"] = {{"rope_type", "yarn"}}; }, "rope_type = \"yarn\"");
  expect_refused([](json& c) { c["rope_parameters"] = json::object(); }, "rope_theta is missing");
}

TEST(Description, TextThatIsNotStrictJsonIsRefused) {
  EXPECT_FALSE(ModelDescription::from_config_json("").ok());
  EXPECT_FALSE(ModelDescription::from_config_json("{\"model_type\": \"llama\", \"model_type\": \"llama\"}").ok());
}

TEST(Description, SizesThatDoNotFitAreRefused) {
  expect_refused([](ModelDescription& m) { m.layers = 0; }, "layers = 0");
  expect_refused([](ModelDescription& m) { m.hidden = -1; }, "hidden = -1");
  expect_refused([](ModelDescription& m) { m.context = 0; }, "context = 0");
  expect_refused([](ModelDescription& m) { m.layers = 1 << 30; }, "layers");
  expect_refused([](ModelDescription& m) { m.kv_heads = 2; }, "not a multiple of kv_heads = 2");
  expect_refused([](ModelDescription& m) { m.head_dim = 63; }, "head_dim = 63 is odd");
  expect_refused([](ModelDescription& m) { m.layers = m.hidden = 1, m.ffn = (1 << 27) + 1; }, "a row of 134217729");
  expect_refused([](ModelDescription& m) { m.norm_epsilon = 0; }, "norm_epsilon");
  expect_refused([](ModelDescription& m) { m.rope_theta = INFINITY; }, "rope_theta");
  expect_refused([](ModelDescription& m) { m.vocabulary = m.hidden = 1 << 30; }, "parameters");
  expect_refused([](ModelDescription& m) { m.hidden = m.head_dim = m.heads = m.kv_heads = 1 << 30; }, "parameters");
}

}  // namespace
}  // namespace flotilla
