#include "learn/torch/transformer.h"

#include <algorithm>
#include <cmath>

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include "learn/torch/row_kernels.h"

namespace flotilla {
namespace {

constexpr std::int64_t kGrain = 16;  // rows that are worth another thread

template <typename F>
void for_each_row(std::int64_t rows, F f) {
  at::parallel_for(0, rows, kGrain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) f(row);
  });
}

const float* row_of(const at::Tensor& matrix, std::int64_t row) {
  return matrix.const_data_ptr<float>() + row * matrix.size(1);
}
float* mutable_row(at::Tensor& matrix, std::int64_t row) {
  return matrix.mutable_data_ptr<float>() + row * matrix.size(1);
}

at::Tensor index_tensor(const std::vector<std::int64_t>& values) {
  return at::from_blob(const_cast<std::int64_t*>(values.data()), {static_cast<std::int64_t>(values.size())}, at::kLong);
}

// x W^T
at::Tensor linear(const at::Tensor& x, const at::Tensor& weight) { return at::mm(x, weight.t()); }

// Adds d(loss)/dW of y = x W^T to its place, and returns d(loss)/dx.
at::Tensor linear_backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& weight, at::Tensor& d_weight) {
  d_weight.addmm_(dy.t(), x);
  return at::mm(dy, weight);
}

void quantize_rows(at::Tensor& x) {
  for_each_row(x.size(0), [&](std::int64_t i) { row::fake_quantize(mutable_row(x, i), x.size(1)); });
}

at::Tensor norm(const at::Tensor& x, const at::Tensor& weight, float epsilon, std::vector<float>& scales) {
  at::Tensor y = at::empty_like(x);
  scales.resize(x.size(0));
  const float* w = weight.const_data_ptr<float>();
  for_each_row(x.size(0), [&](std::int64_t i) {
    scales[i] = row::rms_norm(row_of(x, i), w, x.size(1), epsilon, mutable_row(y, i));
  });
  return y;
}

at::Tensor norm_again(const at::Tensor& x, const at::Tensor& weight, const std::vector<float>& scales) {
  at::Tensor y = at::empty_like(x);
  const float* w = weight.const_data_ptr<float>();
  for_each_row(x.size(0),
               [&](std::int64_t i) { row::rms_norm_again(row_of(x, i), w, x.size(1), scales[i], mutable_row(y, i)); });
  return y;
}

// Adds the gradient through norm(x) to dx [n, hidden], and its weight's to d_weight.
void norm_backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& weight,
                   const std::vector<float>& scales, at::Tensor& dx, at::Tensor& d_weight) {
  const std::int64_t n = x.size(0), hidden = x.size(1);
  const float* w = weight.const_data_ptr<float>();
  for_each_row(n, [&](std::int64_t i) {
    row::rms_norm_backward(row_of(dy, i), row_of(x, i), w, hidden, scales[i], mutable_row(dx, i));
  });
  constexpr std::int64_t kColumns = 64;  // each thread sums columns of its own, in the order of the rows
  float* sum = d_weight.mutable_data_ptr<float>();
  at::parallel_for(0, (hidden + kColumns - 1) / kColumns, 1, [&](std::int64_t first, std::int64_t last) {
    const std::int64_t begin = first * kColumns, count = std::min(last * kColumns, hidden) - begin;
    for (std::int64_t i = 0; i < n; ++i) {
      row::rms_norm_weight_gradient(row_of(dy, i) + begin, row_of(x, i) + begin, count, scales[i], sum + begin);
    }
  });
}

at::Tensor activate(const at::Tensor& gate_up) {
  const std::int64_t ffn = gate_up.size(1) / 2;
  at::Tensor h = at::empty({gate_up.size(0), ffn}, gate_up.options());
  for_each_row(gate_up.size(0), [&](std::int64_t i) { row::swiglu(row_of(gate_up, i), ffn, mutable_row(h, i)); });
  return h;
}

at::Tensor activate_backward(const at::Tensor& dh, const at::Tensor& gate_up) {
  at::Tensor d_gate_up = at::empty_like(gate_up);
  for_each_row(gate_up.size(0), [&](std::int64_t i) {
    row::swiglu_backward(row_of(dh, i), row_of(gate_up, i), dh.size(1), mutable_row(d_gate_up, i));
  });
  return d_gate_up;
}

// Cosines and sines of the angles position * theta^(-2i / head_dim), in double precision.
class Rotation {
 public:
  Rotation(const ModelDescription& description, const PackedBatch& batch)
      : heads_(description.heads + description.kv_heads), dim_(description.head_dim), positions_(batch.positions) {
    const std::int32_t last = batch.positions.empty() ? 0 : *std::max_element(positions_.begin(), positions_.end());
    const std::int64_t half = dim_ / 2;
    cosine_.resize((last + 1) * half);
    sine_.resize((last + 1) * half);
    for (std::int64_t i = 0; i < half; ++i) {
      const double frequency =
          std::pow(description.rope_theta, -2.0 * static_cast<double>(i) / static_cast<double>(dim_));
      for (std::int64_t position = 0; position <= last; ++position) {
        cosine_[position * half + i] = static_cast<float>(std::cos(static_cast<double>(position) * frequency));
        sine_[position * half + i] = static_cast<float>(std::sin(static_cast<double>(position) * frequency));
      }
    }
  }

  // Queries and keys of qkv in place; sign -1 takes gradients back.
  void apply(at::Tensor& qkv, float sign) const {
    for_each_row(qkv.size(0), [&](std::int64_t i) {
      const std::int64_t entry = positions_[i] * (dim_ / 2);
      row::rotate(mutable_row(qkv, i), heads_, dim_, &cosine_[entry], &sine_[entry], sign);
    });
  }

 private:
  std::int64_t heads_, dim_;
  const std::vector<std::int32_t>& positions_;
  std::vector<float> cosine_, sine_;
};

void round_keys_and_values(at::Tensor& qkv, const AttentionShape& shape) {
  const std::int64_t first = shape.heads * shape.head_dim;
  for_each_row(qkv.size(0),
               [&](std::int64_t i) { row::round_to_bf16(mutable_row(qkv, i) + first, qkv.size(1) - first); });
}

// [count, columns of x] with x in the rows that were read and 0 elsewhere.
at::Tensor spread_rows(const at::Tensor& x, const at::Tensor& rows, std::int64_t count) {
  return at::zeros({count, x.size(1)}, x.options()).index_copy_(0, rows, x);
}

}  // namespace

Transformer::Transformer(const ModelDescription& description, bool quantize)
    : description_(description),
      shape_{description.heads, description.kv_heads, description.head_dim},
      quantize_(quantize) {}

at::Tensor Transformer::forward(const ModelTensors& weights, const PackedBatch& batch, Tape* tape) const {
  const float epsilon = description_.norm_epsilon;
  const Rotation rotation(description_, batch);
  const at::Tensor read = index_tensor(batch.rows);
  at::Tensor x = weights.embedding.index_select(0, index_tensor(batch.tokens));
  if (tape) tape->blocks.resize(weights.blocks.size());
  for (std::size_t b = 0; b < weights.blocks.size(); ++b) {
    const BlockTensors& w = weights.blocks[b];
    Tape::Block scratch;
    Tape::Block& kept = tape ? tape->blocks[b] : scratch;
    kept.input = x;
    at::Tensor n = norm(x, w.attention_norm, epsilon, kept.norm);
    if (quantize_) quantize_rows(n);
    kept.qkv = linear(n, w.qkv);
    if (w.qkv_bias.defined()) kept.qkv.add_(w.qkv_bias);
    rotation.apply(kept.qkv, 1);
    if (quantize_) round_keys_and_values(kept.qkv, shape_);
    kept.attended = attention(kept.qkv, batch.segments, shape_);
    if (b + 1 == weights.blocks.size()) {
      x = x.index_select(0, read);
      kept.attended = kept.attended.index_select(0, read);
    }
    if (quantize_) quantize_rows(kept.attended);
    kept.middle = linear(kept.attended, w.o).add_(x);
    n = norm(kept.middle, w.mlp_norm, epsilon, kept.mlp_norm);
    if (quantize_) quantize_rows(n);
    kept.gate_up = linear(n, w.gate_up);
    at::Tensor h = activate(kept.gate_up);
    if (quantize_) quantize_rows(h);
    x = linear(h, w.down).add_(kept.middle);
  }
  std::vector<float> scales;
  at::Tensor y = norm(x, weights.final_norm, epsilon, tape ? tape->final_norm : scales);
  if (tape) tape->output = x;
  if (quantize_) quantize_rows(y);
  return y;
}

void Transformer::backward(const ModelTensors& weights, const PackedBatch& batch, const at::Tensor& d_output,
                           Tape& tape, ModelTensors& gradient) const {
  const Rotation rotation(description_, batch);
  const at::Tensor read = index_tensor(batch.rows);
  const auto tokens = static_cast<std::int64_t>(batch.tokens.size());
  at::Tensor dx = at::zeros_like(tape.output);
  norm_backward(d_output, tape.output, weights.final_norm, tape.final_norm, dx, gradient.final_norm);
  for (std::size_t b = weights.blocks.size(); b-- > 0;) {
    const BlockTensors& w = weights.blocks[b];
    BlockTensors& d = gradient.blocks[b];
    const Tape::Block kept = std::move(tape.blocks[b]);  // freed at the end of the round

    at::Tensor h = activate(kept.gate_up);
    if (quantize_) quantize_rows(h);
    at::Tensor d_gate_up = activate_backward(linear_backward(dx, h, w.down, d.down), kept.gate_up);
    at::Tensor n = norm_again(kept.middle, w.mlp_norm, kept.mlp_norm);
    if (quantize_) quantize_rows(n);
    norm_backward(linear_backward(d_gate_up, n, w.gate_up, d.gate_up), kept.middle, w.mlp_norm, kept.mlp_norm, dx,
                  d.mlp_norm);

    at::Tensor d_attended = linear_backward(dx, kept.attended, w.o, d.o);
    if (b + 1 == weights.blocks.size()) {
      dx = spread_rows(dx, read, tokens);
      d_attended = spread_rows(d_attended, read, tokens);
    }
    at::Tensor d_qkv = attention_backward(d_attended, kept.qkv, batch.segments, shape_);
    rotation.apply(d_qkv, -1);
    if (d.qkv_bias.defined()) d.qkv_bias.add_(d_qkv.sum(0));
    n = norm_again(kept.input, w.attention_norm, kept.norm);
    if (quantize_) quantize_rows(n);
    norm_backward(linear_backward(d_qkv, n, w.qkv, d.qkv), kept.input, w.attention_norm, kept.norm, dx,
                  d.attention_norm);
  }
  gradient.embedding.index_add_(0, index_tensor(batch.tokens), dx);
  tape = {};
}

}  // namespace flotilla
