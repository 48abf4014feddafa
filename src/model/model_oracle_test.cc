// Model files against packages that we did not write: tests/oracles/model_oracle.py.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "base/files.h"
#include "base/hashing.h"
#include "model/model_import.h"
#include "model/oracle_for_tests.h"
#include "model/safetensors.h"
#include "model/test_models.h"

namespace flotilla {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

class ModelOracle : public testing::Test {
 protected:
  void SetUp() override { FLOTILLA_NEED_ORACLE(); }

  fs::path gguf() const { return packaged_model().value(); }

  json ask(std::string_view command, const fs::path& path) const {
    const fs::path out = folder_.path() / "out.json";
    EXPECT_TRUE(run_python("tests/oracles/model_oracle.py", command, path, out));
    const auto text = read_text_file(out);
    return text.ok() ? json::parse(*text) : json::object();
  }

  TemporaryFolder folder_;
};

std::string digest(const std::vector<float>& values) {
  return sha256(as_bytes(std::span<const float>(values))).to_hex();
}

json digests(const ModelWeights& weights) {
  json result = json::object();
  for (std::size_t i = 0; i < weights.tensors.size(); ++i) {
    result[weights.description.tensors[i].name] = digest(weights.tensors[i]);
  }
  return result;
}

void expect_sizes(const json& found, const ModelDescription& model) {
  EXPECT_EQ(found["layers"], model.layers);
  EXPECT_EQ(found["hidden"], model.hidden);
  EXPECT_EQ(found["heads"], model.heads);
  EXPECT_EQ(found["kv_heads"], model.kv_heads);
  EXPECT_EQ(found["head_dim"], model.head_dim);
  EXPECT_EQ(found["ffn"], model.ffn);
  EXPECT_EQ(found["vocabulary"], model.vocabulary);
  EXPECT_EQ(found["context"], model.context);
  EXPECT_EQ(found["norm_epsilon"].get<float>(), model.norm_epsilon);
  EXPECT_EQ(found["rope_theta"], model.rope_theta);
  EXPECT_EQ(found["tied_embeddings"], model.tied_embeddings);
}

TEST_F(ModelOracle, GgufDequantisesToTheSameBits) {
  const auto file = GgufFile::open(gguf());
  ASSERT_TRUE(file.ok()) << file.status().to_string();
  json ours = json::object();
  for (const GgufTensor& tensor : file->tensors()) {
    std::vector<float> values(tensor.rows * tensor.cols);
    dequantize(tensor, values.data());
    ours[std::string(tensor.name)] = digest(values);
  }
  EXPECT_EQ(ours.size(), 272u);
  EXPECT_EQ(ours, ask("gguf", gguf()));
}

TEST_F(ModelOracle, TransformersReadsTheSameModelFromGguf) {
  const auto model = load_model(gguf());
  ASSERT_TRUE(model.ok()) << model.status().to_string();
  const json theirs = ask("transformers-gguf", gguf());
  expect_sizes(theirs["config"], model->weights.description);
  EXPECT_EQ(digests(model->weights), theirs["tensors"]);
}

TEST_F(ModelOracle, TransformersReadsTheFolderThatWeWrite) {
  const struct {
    bool tied;
    const char* architecture;
    const char* class_name;
  } models[] = {
      {true, "llama", "LlamaForCausalLM"}, {false, "llama", "LlamaForCausalLM"}, {true, "qwen2", "Qwen2ForCausalLM"}};
  for (const auto& [tied, architecture, class_name] : models) {
    const ModelWeights weights = tiny_weights(tiny_description(tied, architecture));
    const auto tokenizer = Tokenizer::create(tiny_tokenizer_spec()).value();
    const fs::path folder = folder_.path() / fmt::format("{}-{}", architecture, tied);
    ASSERT_TRUE(save_model_folder(folder, weights, *tokenizer).ok());
    const json theirs = ask("transformers-folder", folder);
    EXPECT_EQ(theirs["class"], class_name);
    expect_sizes(theirs["config"], weights.description);
    EXPECT_EQ(theirs["tensors"], digests(weights));
    EXPECT_EQ(theirs["eos"], tokenizer->spec().eos);
    EXPECT_EQ(theirs["chat_template"], tokenizer->spec().chat_template);
    for (std::size_t i = 0; i < theirs["texts"].size(); ++i) {
      EXPECT_EQ(json(tokenizer->encode(theirs["texts"][i].get<std::string>(), true)), theirs["ids"][i]);
    }
  }
}

TEST_F(ModelOracle, Qwen2OfTransformersAndOfGgufIsReadWithItsPaddedVocabulary) {
  ASSERT_TRUE(run_python("tests/oracles/qwen2_oracle.py", "models", folder_.path()));
  const json expected = json::parse(read_text_file(folder_.path() / "expected.json").value());
  for (const std::string name : {"tied", "untied"}) {
    const json& theirs = expected[name];
    const auto folder = load_model(folder_.path() / name);
    ASSERT_TRUE(folder.ok()) << folder.status().to_string();
    const auto file = load_model(folder_.path() / (name + ".gguf"));
    ASSERT_TRUE(file.ok()) << file.status().to_string();
    for (const Model* model : {&*folder, &*file}) {
      EXPECT_EQ(model->weights.description.architecture, "qwen2");
      expect_sizes(theirs["config"], model->weights.description);
      EXPECT_EQ(digests(model->weights), theirs["tensors"]);
      EXPECT_EQ(model->tokenizer->vocabulary(), theirs["tokens"]);
      EXPECT_GT(model->weights.description.vocabulary, model->tokenizer->vocabulary());
      EXPECT_EQ(model->tokenizer->spec().eos, theirs["eos"]);
      EXPECT_EQ(model->tokenizer->spec().pad, theirs["pad"]);
      EXPECT_EQ(model->tokenizer->spec().chat_template, theirs["chat_template"]);
    }
    EXPECT_EQ(file->tokenizer->digest(), folder->tokenizer->digest());

    // Saved again, it is still a model that transformers reads.
    const fs::path again = folder_.path() / (name + "-again");
    ASSERT_TRUE(save_model_folder(again, folder->weights, *folder->tokenizer).ok());
    const json reread = ask("transformers-folder", again);
    EXPECT_EQ(reread["tensors"], theirs["tensors"]);
    for (std::size_t i = 0; i < reread["texts"].size(); ++i) {
      EXPECT_EQ(json(folder->tokenizer->encode(reread["texts"][i].get<std::string>(), true)), reread["ids"][i]);
    }
  }
}

json entries(const SafetensorsFile& file) {
  json result = json::object();
  for (const TensorView& tensor : file.tensors()) {
    result[tensor.name] = {dtype_name(tensor.dtype), tensor.shape, sha256(tensor.bytes).to_hex()};
  }
  return result;
}

TEST_F(ModelOracle, SafetensorsReadsWhatWeWrite) {
  Bytes bytes(2048);
  PhiloxStream random(1, 2);
  for (std::uint8_t& byte : bytes) byte = static_cast<std::uint8_t>(random.below(2));  // valid as booleans, too
  std::vector<TensorToWrite> tensors;
  for (const char* name : {"U8", "F16", "I64", "BOOL", "F32", "I8", "BF16", "U16", "F64", "I32", "U32", "I16", "U64"}) {
    const DType dtype = dtype_from_name(name).value();
    const auto cols = static_cast<std::int64_t>(tensors.size() + 1);
    tensors.push_back({name, dtype, {3, cols}, ByteSpan(bytes).first(3 * cols * dtype_size(dtype))});
  }
  tensors.push_back({"scalar", DType::kF32, {}, ByteSpan(bytes).first(4)});
  tensors.push_back({"empty", DType::kF32, {0, 4}, {}});
  const SafetensorsMetadata metadata = {{"made by", "flotilla"}, {"ü", "ö\n"}};
  const fs::path path = folder_.path() / "ours.safetensors";
  ASSERT_TRUE(write_safetensors_file(path, tensors, metadata).ok());
  const json theirs = ask("safetensors-read", path);
  EXPECT_EQ(theirs["tensors"], entries(SafetensorsFile::open(path).value()));
  EXPECT_EQ(theirs["metadata"], json(metadata));
}

TEST_F(ModelOracle, WeReadWhatSafetensorsWrites) {
  const fs::path path = folder_.path() / "theirs.safetensors";
  const json theirs = ask("safetensors-write", path);
  const auto file = SafetensorsFile::open(path);
  ASSERT_TRUE(file.ok()) << file.status().to_string();
  EXPECT_EQ(entries(*file), theirs["tensors"]);
  EXPECT_EQ(json(file->metadata()), theirs["metadata"]);
}

}  // namespace
}  // namespace flotilla
