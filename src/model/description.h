#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace flotilla {

// Index into ModelDescription::tensors.
using TensorIndex = std::int32_t;

enum class TensorKind {
  kMatrix,  // [rows, cols], a linear map or an embedding; int8 on the grid
  kVector,  // [n], norms and biases; 16 bits on the grid
};

struct TensorSpec {
  std::string name;       // Hugging Face name: "model.layers.0.self_attn.q_proj.weight"
  std::string gguf_name;  // "blk.0.attn_q.weight"
  TensorKind kind = TensorKind::kMatrix;
  std::int64_t rows = 0;  // of a vector: 1
  std::int64_t cols = 0;
  // > 0: GGUF stores the rows of each of so many heads with the two of a rotated pair side by side; here, as in Hugging
  // Face's files, the first halves of all pairs come first.
  std::int32_t gguf_paired_heads = 0;
  std::int64_t size() const { return rows * cols; }
};

// One decoder block: x += o(attention(rope(q(n)), rope(k(n)), v(n))), n = rms_norm(x); then
// x += down(silu(gate(m)) * up(m)), m = rms_norm(x).
struct DecoderBlock {
  TensorIndex attention_norm = -1;
  TensorIndex q = -1, k = -1, v = -1,
              o = -1;  // [heads*head_dim, hidden], [kv_heads*head_dim, hidden] x2, [hidden, heads*head_dim]
  std::optional<TensorIndex> q_bias, k_bias, v_bias;  // in Qwen2, absent in Llama
  TensorIndex mlp_norm = -1;
  TensorIndex gate = -1, up = -1, down = -1;  // [ffn, hidden] x2, [hidden, ffn]
};

// An architecture as a list of blocks over a list of named tensors. Import, export, grid, engine, learner and sync all
// read this one description; a new architecture of the same blocks is one more function that fills it.
// Plain data; immutable after it is made.
struct ModelDescription {
  std::string architecture;  // "llama" or "qwen2"
  std::int32_t layers = 0;
  std::int32_t hidden = 0;
  std::int32_t heads = 0;
  std::int32_t kv_heads = 0;
  std::int32_t head_dim = 0;
  std::int32_t ffn = 0;
  std::int32_t vocabulary = 0;
  std::int32_t context = 0;  // most positions the model was made for
  float norm_epsilon = 0;
  double rope_theta = 0;  // rotates pairs (i, i + head_dim/2), as Hugging Face's Llama does
  bool tied_embeddings = false;

  std::vector<TensorSpec> tensors;  // in the order in which formats and digests list them
  TensorIndex embedding = -1;       // [vocabulary, hidden]
  std::vector<DecoderBlock> blocks;
  TensorIndex final_norm = -1;
  TensorIndex head = -1;  // [vocabulary, hidden]; == embedding when tied

  std::int64_t parameters() const;
  std::optional<TensorIndex> find(std::string_view name) const;
  // The fields that Hugging Face's config.json has, and back. An unknown architecture, a missing field or sizes that
  // do not fit each other are invalid_argument that names the field.
  std::string to_config_json() const;
  static Result<ModelDescription> from_config_json(std::string_view text);
};

// invalid_argument, with the list of the known ones, for an architecture that describe_model does not know.
Status check_architecture(std::string_view name);

// Fills blocks and tensors from the sizes already in `sizes`. invalid_argument for an architecture that is not known or
// sizes that do not fit (zero, heads not a multiple of kv_heads, odd head_dim, products that overflow 2^40).
Result<ModelDescription> describe_model(ModelDescription sizes);

}  // namespace flotilla
