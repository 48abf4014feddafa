#pragma once

#include <map>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/cos.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/outer.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/sin.h>
#include <ATen/ops/softmax.h>

#include "model/weights.h"

namespace flotilla {

// The model written as plainly as possible, one sequence at a time, with libtorch's autograd in double precision: slow,
// and what the fast one is checked against.
class ReferenceModel {
 public:
  explicit ReferenceModel(const ModelWeights& weights) : description_(weights.description) {
    for (std::size_t i = 0; i < weights.tensors.size(); ++i) {
      const TensorSpec& spec = description_.tensors[i];
      auto* data = const_cast<float*>(weights.tensors[i].data());
      at::Tensor tensor = at::from_blob(data, {spec.rows, spec.cols}, at::kFloat).to(at::kDouble);
      if (spec.kind == TensorKind::kVector) tensor = tensor.reshape({spec.cols});
      tensors_.push_back(tensor.clone().requires_grad_(true));
    }
  }

  // [T, vocabulary]: log-probabilities after each token.
  at::Tensor log_probabilities(const std::vector<TokenId>& tokens) const {
    const auto count = static_cast<std::int64_t>(tokens.size());
    const at::Tensor ids = at::from_blob(const_cast<TokenId*>(tokens.data()), {count}, at::kInt).to(at::kLong);
    at::Tensor x = tensors_[description_.embedding].index_select(0, ids);
    for (const DecoderBlock& block : description_.blocks) {
      const at::Tensor n = norm(x, block.attention_norm);
      const std::int64_t dim = description_.head_dim, heads = description_.heads, kv_heads = description_.kv_heads;
      const auto split = [&](TensorIndex w, std::int64_t parts) {
        return at::matmul(n, tensors_[w].t()).view({count, parts, dim}).transpose(0, 1);  // [heads, T, dim]
      };
      const at::Tensor q = rope(split(block.q, heads));
      const at::Tensor k = rope(split(block.k, kv_heads)).repeat_interleave(heads / kv_heads, 0);
      const at::Tensor v = split(block.v, kv_heads).repeat_interleave(heads / kv_heads, 0);
      at::Tensor scores = at::matmul(q, k.transpose(1, 2)).div(std::sqrt(static_cast<double>(dim)));
      const at::Tensor future = at::ones({count, count}, at::kBool).triu(1);
      scores = scores.masked_fill(future, -std::numeric_limits<double>::infinity());
      const at::Tensor mixed = at::matmul(at::softmax(scores, -1), v).transpose(0, 1).reshape({count, heads * dim});
      x = x.add(at::matmul(mixed, tensors_[block.o].t()));
      const at::Tensor m = norm(x, block.mlp_norm);
      const at::Tensor gate = at::matmul(m, tensors_[block.gate].t()), up = at::matmul(m, tensors_[block.up].t());
      x = x.add(at::matmul(at::silu(gate).mul(up), tensors_[block.down].t()));
    }
    return at::log_softmax(at::matmul(norm(x, description_.final_norm), tensors_[description_.head].t()), -1);
  }

  // In the order of description.tensors.
  const std::vector<at::Tensor>& tensors() const { return tensors_; }

 private:
  at::Tensor norm(const at::Tensor& x, TensorIndex weight) const {
    return x.mul(at::rsqrt(x.square().mean(-1, true).add(double{description_.norm_epsilon}))).mul(tensors_[weight]);
  }

  // x [heads, T, dim], positions 0 to T - 1.
  at::Tensor rope(const at::Tensor& x) const {
    const std::int64_t half = description_.head_dim / 2;
    const at::Tensor exponents = at::arange(half, at::kDouble).mul(-2.0 / description_.head_dim);
    const at::Tensor angles =
        at::outer(at::arange(x.size(1), at::kDouble), at::pow(description_.rope_theta, exponents));
    const at::Tensor a = x.narrow(2, 0, half), b = x.narrow(2, half, half);
    const at::Tensor c = at::cos(angles), s = at::sin(angles);
    return at::cat({a.mul(c).sub(b.mul(s)), b.mul(c).add(a.mul(s))}, 2);
  }

  ModelDescription description_;
  std::vector<at::Tensor> tensors_;
};

}  // namespace flotilla
