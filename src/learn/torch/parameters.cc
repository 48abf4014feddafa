#include "learn/torch/parameters.h"

#include "base/status.h"

namespace flotilla {
namespace {

constexpr std::int64_t kAlign = 16;  // floats: a cache line

}  // namespace

void ParameterLayout::place(std::initializer_list<TensorIndex> tensors, const ModelDescription& description) {
  size_ = (size_ + kAlign - 1) / kAlign * kAlign;
  for (const TensorIndex tensor : tensors) {
    offsets_[tensor] = size_;
    size_ += description.tensors[tensor].size();
  }
}

ParameterLayout::ParameterLayout(const ModelDescription& description) : offsets_(description.tensors.size(), -1) {
  place({description.embedding}, description);
  for (const DecoderBlock& block : description.blocks) {
    place({block.attention_norm}, description);
    place({block.q, block.k, block.v}, description);
    if (block.q_bias) place({*block.q_bias, *block.k_bias, *block.v_bias}, description);
    place({block.o}, description);
    place({block.mlp_norm}, description);
    place({block.gate, block.up}, description);
    place({block.down}, description);
  }
  place({description.final_norm}, description);
  if (!description.tied_embeddings) place({description.head}, description);
  for (const std::int64_t offset : offsets_) FLOTILLA_CHECK(offset >= 0);
}

ModelTensors make_tensors(const ModelDescription& description, const ParameterLayout& layout, at::Tensor flat) {
  const auto matrix = [&](TensorIndex first, std::int64_t rows, std::int64_t cols) {
    return flat.narrow(0, layout.offset(first), rows * cols).view({rows, cols});
  };
  const auto vector = [&](TensorIndex first, std::int64_t size) { return flat.narrow(0, layout.offset(first), size); };
  const std::int64_t hidden = description.hidden, head_dim = description.head_dim;
  const std::int64_t qkv_rows = (description.heads + 2 * description.kv_heads) * head_dim;

  ModelTensors tensors;
  tensors.flat = flat;
  tensors.embedding = matrix(description.embedding, description.vocabulary, hidden);
  tensors.final_norm = vector(description.final_norm, hidden);
  tensors.head = matrix(description.head, description.vocabulary, hidden);
  for (const DecoderBlock& block : description.blocks) {
    BlockTensors& views = tensors.blocks.emplace_back();
    views.attention_norm = vector(block.attention_norm, hidden);
    views.qkv = matrix(block.q, qkv_rows, hidden);
    if (block.q_bias) views.qkv_bias = vector(*block.q_bias, qkv_rows);
    views.o = matrix(block.o, hidden, description.heads * head_dim);
    views.mlp_norm = vector(block.mlp_norm, hidden);
    views.gate_up = matrix(block.gate, 2 * std::int64_t{description.ffn}, hidden);
    views.down = matrix(block.down, hidden, description.ffn);
  }
  return tensors;
}

}  // namespace flotilla
