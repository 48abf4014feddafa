#pragma once

// Small models and a GGUF writer for the tests of this folder.

#include <cmath>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/philox.h"
#include "model/bpe.h"
#include "model/description.h"
#include "model/gguf.h"
#include "model/tokenizer.h"
#include "model/weights.h"

namespace flotilla {

// The 256 bytes, one merge, and two special tokens.
inline TokenizerSpec tiny_tokenizer_spec() {
  TokenizerSpec spec;
  for (int byte = 0; byte < 256; ++byte) {
    spec.tokens.push_back(bytes_to_alphabet(std::string(1, static_cast<char>(byte))));
  }
  spec.tokens.push_back("th");
  spec.merges.emplace_back("t", "h");
  for (const char* special : {"<|im_start|>", "<|im_end|>"}) {
    spec.special.push_back(static_cast<TokenId>(spec.tokens.size()));
    spec.tokens.push_back(special);
  }
  spec.bos = 257;
  spec.eos = 258;
  spec.pad = 258;
  spec.chat_template = "{{ messages }}";
  return spec;
}

inline ModelDescription tiny_description(bool tied = true, std::string architecture = "llama") {
  ModelDescription model;
  model.architecture = std::move(architecture);
  model.layers = 2;
  model.hidden = 32;
  model.heads = 4;
  model.kv_heads = 2;
  model.head_dim = 8;
  model.ffn = 64;
  model.vocabulary = 259;
  model.context = 128;
  model.norm_epsilon = 1e-5f;
  model.rope_theta = 10000;
  model.tied_embeddings = tied;
  return describe_model(std::move(model)).value();
}

inline ModelWeights tiny_weights(const ModelDescription& description, std::uint64_t seed = 1) {
  ModelWeights weights{description, {}};
  PhiloxStream random(seed, 7);
  for (const TensorSpec& spec : description.tensors) {
    auto& values = weights.tensors.emplace_back(spec.size());
    for (float& value : values) value = static_cast<float>(random.uniform() - 0.5);
  }
  return weights;
}

// Writes GGUF files, faulty ones too: nothing is checked.
class GgufBuilder {
 public:
  explicit GgufBuilder(std::uint32_t version = 3) : version_(version) {}

  GgufBuilder& entry(std::string_view key, std::uint32_t type, ByteSpan value) {
    put_string(entries_, key);
    entries_.put(type);
    entries_.put_bytes(value);
    ++entry_count_;
    return *this;
  }
  template <typename T>
  GgufBuilder& number(std::string_view key, std::uint32_t type, T value) {
    return entry(key, type, as_bytes(std::span<const T>(&value, 1)));
  }
  GgufBuilder& u32(std::string_view key, std::uint32_t value) { return number(key, 4, value); }
  GgufBuilder& f32(std::string_view key, float value) { return number(key, 6, value); }
  GgufBuilder& text(std::string_view key, std::string_view value) {
    ByteWriter writer;
    put_string(writer, value);
    return entry(key, 8, std::move(writer).take());
  }
  GgufBuilder& texts(std::string_view key, const std::vector<std::string>& values) {
    ByteWriter writer;
    writer.put(std::uint32_t{8});
    writer.put(static_cast<std::uint64_t>(values.size()));
    for (const std::string& value : values) put_string(writer, value);
    return entry(key, 9, std::move(writer).take());
  }
  template <typename T>
  GgufBuilder& array(std::string_view key, std::uint32_t type, const std::vector<T>& values) {
    ByteWriter writer;
    writer.put(type);
    writer.put(static_cast<std::uint64_t>(values.size()));
    for (const T value : values) writer.put(value);
    return entry(key, 9, std::move(writer).take());
  }

  // At the next aligned place of the data. Dimensions as GGUF lists them: the fastest first.
  GgufBuilder& tensor(std::string_view name, const std::vector<std::uint64_t>& dimensions, std::uint32_t type,
                      ByteSpan data) {
    tensor_at(name, dimensions, type, data_.size());
    data_.put_bytes(data);
    while (data_.size() % alignment_ != 0) data_.put(std::uint8_t{0});
    return *this;
  }
  GgufBuilder& tensor_at(std::string_view name, const std::vector<std::uint64_t>& dimensions, std::uint32_t type,
                         std::uint64_t offset) {
    put_string(tensors_, name);
    tensors_.put(static_cast<std::uint32_t>(dimensions.size()));
    for (const std::uint64_t size : dimensions) tensors_.put(size);
    tensors_.put(type);
    tensors_.put(offset);
    ++tensor_count_;
    return *this;
  }
  GgufBuilder& align(std::uint32_t alignment) {
    alignment_ = alignment;
    return u32("general.alignment", alignment);
  }
  GgufBuilder& counts(std::uint64_t tensors, std::uint64_t entries) {
    tensor_count_ = tensors;
    entry_count_ = entries;
    return *this;
  }

  Bytes build() const {
    ByteWriter writer;
    writer.put_bytes(as_bytes("GGUF"));
    writer.put(version_);
    writer.put(tensor_count_);
    writer.put(entry_count_);
    writer.put_bytes(ByteWriter(entries_).take());
    writer.put_bytes(ByteWriter(tensors_).take());
    if (tensor_count_ > 0) {
      while (writer.size() % alignment_ != 0) writer.put(std::uint8_t{0});
    }
    writer.put_bytes(ByteWriter(data_).take());
    return std::move(writer).take();
  }

 private:
  static void put_string(ByteWriter& writer, std::string_view text) {
    writer.put(static_cast<std::uint64_t>(text.size()));
    writer.put_bytes(as_bytes(text));
  }

  std::uint32_t version_;
  std::uint32_t alignment_ = 32;
  std::uint64_t tensor_count_ = 0;
  std::uint64_t entry_count_ = 0;
  ByteWriter entries_;
  ByteWriter tensors_;
  ByteWriter data_;
};

inline void put_tiny_sizes(GgufBuilder& builder) {
  builder.text("general.architecture", "llama")
      .u32("llama.block_count", 2)
      .u32("llama.context_length", 128)
      .u32("llama.embedding_length", 32)
      .u32("llama.feed_forward_length", 64)
      .u32("llama.attention.head_count", 4)
      .u32("llama.attention.head_count_kv", 2)
      .f32("llama.attention.layer_norm_rms_epsilon", 1e-5f)
      .u32("llama.rope.dimension_count", 8)
      .u32("llama.vocab_size", 259);
}

inline void put_tiny_tokenizer(GgufBuilder& builder) {
  const TokenizerSpec spec = tiny_tokenizer_spec();
  std::vector<std::int32_t> types(259, 1);
  types[257] = types[258] = 3;
  builder.text("tokenizer.ggml.model", "gpt2")
      .text("tokenizer.ggml.pre", "smollm")
      .number("tokenizer.ggml.add_bos_token", 7, std::uint8_t{0})
      .texts("tokenizer.ggml.tokens", spec.tokens)
      .array("tokenizer.ggml.token_type", 5, types)
      .texts("tokenizer.ggml.merges", {"t h"})
      .u32("tokenizer.ggml.bos_token_id", 257)
      .u32("tokenizer.ggml.eos_token_id", 258)
      .u32("tokenizer.ggml.padding_token_id", 258)
      .text("tokenizer.chat_template", spec.chat_template);
}

// As llama.cpp's converter orders the rows of q and k: for each head, the two of each rotated pair side by side.
inline std::vector<float> pair_rows(const TensorSpec& spec, const std::vector<float>& values) {
  std::vector<float> paired;
  const std::int64_t half = spec.rows / spec.gguf_paired_heads / 2;
  for (std::int64_t head = 0; head < spec.gguf_paired_heads; ++head) {
    for (std::int64_t pair = 0; pair < half; ++pair) {
      for (const std::int64_t row : {head * 2 * half + pair, head * 2 * half + half + pair}) {
        paired.insert(paired.end(), values.begin() + row * spec.cols, values.begin() + (row + 1) * spec.cols);
      }
    }
  }
  return paired;
}

inline void put_weights(GgufBuilder& builder, const ModelWeights& weights) {
  for (std::size_t i = 0; i < weights.tensors.size(); ++i) {
    const TensorSpec& spec = weights.description.tensors[i];
    std::vector<std::uint64_t> dimensions = {static_cast<std::uint64_t>(spec.cols)};
    if (spec.kind == TensorKind::kMatrix) dimensions.push_back(static_cast<std::uint64_t>(spec.rows));
    const std::vector<float> values =
        spec.gguf_paired_heads > 0 ? pair_rows(spec, weights.tensors[i]) : weights.tensors[i];
    builder.tensor(spec.gguf_name, dimensions, 0, as_bytes(std::span<const float>(values)));
  }
}

}  // namespace flotilla
