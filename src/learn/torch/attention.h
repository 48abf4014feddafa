#pragma once

#include <cstdint>
#include <span>

#include <ATen/core/Tensor.h>

#include "learn/torch/packed_batch.h"

namespace flotilla {

struct AttentionShape {
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;
  std::int64_t head_dim = 0;
  std::int64_t width() const { return (heads + 2 * kv_heads) * head_dim; }
};

// softmax(q k^T / sqrt(head_dim)) v over the tree of each segment: a token attends to the prompt and to what came
// before it in its own branch. qkv [T, width] holds rotated queries, rotated keys and values of each token; head h uses
// the keys and values of head h / (heads / kv_heads). Returns [T, heads * head_dim]. Work is spread over (segment,
// head).
at::Tensor attention(const at::Tensor& qkv, std::span<const Segment> segments, const AttentionShape& shape);

// d(loss)/d(qkv), given d_out = d(loss)/d(out). The scores are computed again.
at::Tensor attention_backward(const at::Tensor& d_out, const at::Tensor& qkv, std::span<const Segment> segments,
                              const AttentionShape& shape);

}  // namespace flotilla
