#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "model/description.h"

namespace flotilla {

// Where the tensors of a model lie in one flat fp32 buffer. Matrices that multiply the same input lie one behind the
// other (q, k, v; gate, up), so that one product computes them all.
class ParameterLayout {
 public:
  explicit ParameterLayout(const ModelDescription& description);
  std::int64_t size() const { return size_; }  // floats
  std::int64_t offset(TensorIndex tensor) const { return offsets_[tensor]; }

 private:
  void place(std::initializer_list<TensorIndex> tensors, const ModelDescription& description);
  std::vector<std::int64_t> offsets_;
  std::int64_t size_ = 0;
};

struct BlockTensors {
  at::Tensor attention_norm;  // [hidden]
  at::Tensor qkv;             // [(heads + 2 * kv_heads) * head_dim, hidden]
  at::Tensor qkv_bias;        // [(heads + 2 * kv_heads) * head_dim], undefined when the model has none
  at::Tensor o;               // [hidden, heads * head_dim]
  at::Tensor mlp_norm;        // [hidden]
  at::Tensor gate_up;         // [2 * ffn, hidden]
  at::Tensor down;            // [hidden, ffn]
};

// Views of a flat buffer: weights, their gradient, or anything else of the same layout.
struct ModelTensors {
  at::Tensor flat;        // [layout.size()]
  at::Tensor embedding;   // [vocabulary, hidden]
  at::Tensor final_norm;  // [hidden]
  at::Tensor head;        // [vocabulary, hidden]; shares memory with `embedding` when tied
  std::vector<BlockTensors> blocks;
};

ModelTensors make_tensors(const ModelDescription& description, const ParameterLayout& layout, at::Tensor flat);

}  // namespace flotilla
