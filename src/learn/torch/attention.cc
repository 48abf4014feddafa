#include "learn/torch/attention.h"

#include <cmath>
#include <limits>

#include <ATen/Parallel.h>
#include <ATen/ops/_softmax.h>
#include <ATen/ops/_softmax_backward_data.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

namespace flotilla {
namespace {

constexpr std::int64_t kRowsWorthAThread = 16;

// The tokens whose queries are computed together. Their keys are the prompt's [prompt_begin, prompt_end), all of
// them, and their own, up to themselves.
struct Stretch {
  std::int64_t begin, end;
  std::int64_t prompt_begin, prompt_end;
};

template <typename F>
void for_each_stretch(const Segment& segment, F f) {
  if (segment.prompt_end > segment.begin) f(Stretch{segment.begin, segment.prompt_end, segment.begin, segment.begin});
  std::int64_t begin = segment.prompt_end;
  for (const std::int64_t end : segment.branch_ends) {
    if (end > begin) f(Stretch{begin, end, segment.begin, segment.prompt_end});
    begin = end;
  }
}

// The columns of one head in a [T, width] matrix, and rows of it.
at::Tensor columns(const at::Tensor& matrix, std::int64_t first, std::int64_t count) {
  return matrix.narrow(1, first, count);
}
at::Tensor rows(const at::Tensor& matrix, std::int64_t begin, std::int64_t end) {
  return matrix.narrow(0, begin, end - begin);
}

// [tokens, prompt + tokens]: the attention weights of a stretch.
at::Tensor weights_of(const Stretch& stretch, const at::Tensor& q, const at::Tensor& k, double scale) {
  const std::int64_t tokens = stretch.end - stretch.begin, prompt = stretch.prompt_end - stretch.prompt_begin;
  at::Tensor scores = at::empty({tokens, prompt + tokens}, q.options());
  const at::Tensor query = rows(q, stretch.begin, stretch.end);
  const auto product = [&](std::int64_t column, std::int64_t begin, std::int64_t end) {
    at::Tensor part = columns(scores, column, end - begin);
    at::addmm_out(part, part, query, rows(k, begin, end).t(), /*beta=*/0, /*alpha=*/scale);
  };
  if (prompt > 0) product(0, stretch.prompt_begin, stretch.prompt_end);
  product(prompt, stretch.begin, stretch.end);
  float* data = scores.mutable_data_ptr<float>();
  for (std::int64_t i = 0; i < tokens; ++i) {
    float* row = data + i * (prompt + tokens);
    for (std::int64_t j = prompt + i + 1; j < prompt + tokens; ++j) row[j] = -std::numeric_limits<float>::infinity();
  }
  return at::_softmax(scores, 1, false);
}

// Calls f(segment, head) for all pairs, on all threads. Query heads, not key heads, are the pieces: a batch of one
// segment would else be three pieces of SmolLM2's nine heads, which two threads cannot share evenly.
template <typename F>
void for_each_head(std::span<const Segment> segments, const AttentionShape& shape, F f) {
  const auto pairs = static_cast<std::int64_t>(segments.size()) * shape.heads;
  at::parallel_for(0, pairs, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t pair = begin; pair < end; ++pair) f(segments[pair / shape.heads], pair % shape.heads);
  });
}

// Where the queries, keys and values of query head `head` begin in qkv.
struct HeadColumns {
  std::int64_t q, k, v;
};

HeadColumns columns_of(const AttentionShape& shape, std::int64_t head) {
  const std::int64_t key_head = head / (shape.heads / shape.kv_heads);
  return {head * shape.head_dim, (shape.heads + key_head) * shape.head_dim,
          (shape.heads + shape.kv_heads + key_head) * shape.head_dim};
}

// Adds the key or value gradients of the query heads [T, heads * dim] to those of their key heads in d_qkv, from
// column `first` on; in the order of the heads, so that the sum does not depend on threads.
void sum_over_query_heads(const at::Tensor& per_head, const AttentionShape& shape, std::int64_t first,
                          at::Tensor& d_qkv) {
  const std::int64_t dim = shape.head_dim, per_key_head = shape.heads / shape.kv_heads;
  const float* from = per_head.const_data_ptr<float>();
  float* to = d_qkv.mutable_data_ptr<float>();
  at::parallel_for(0, d_qkv.size(0), kRowsWorthAThread, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      for (std::int64_t head = 0; head < shape.heads; ++head) {
        const float* source = from + (row * shape.heads + head) * dim;
        float* target = to + row * d_qkv.size(1) + first + head / per_key_head * dim;
        for (std::int64_t i = 0; i < dim; ++i) target[i] += source[i];
      }
    }
  });
}

}  // namespace

at::Tensor attention(const at::Tensor& qkv, std::span<const Segment> segments, const AttentionShape& shape) {
  const std::int64_t dim = shape.head_dim;
  const double scale = 1.0 / std::sqrt(static_cast<double>(dim));
  at::Tensor out = at::empty({qkv.size(0), shape.heads * dim}, qkv.options());
  for_each_head(segments, shape, [&](const Segment& segment, std::int64_t head) {
    const HeadColumns first = columns_of(shape, head);
    const at::Tensor q = columns(qkv, first.q, dim), k = columns(qkv, first.k, dim), v = columns(qkv, first.v, dim);
    const at::Tensor head_out = columns(out, head * dim, dim);
    for_each_stretch(segment, [&](const Stretch& stretch) {
      const std::int64_t tokens = stretch.end - stretch.begin, prompt = stretch.prompt_end - stretch.prompt_begin;
      const at::Tensor weights = weights_of(stretch, q, k, scale);
      at::Tensor target = rows(head_out, stretch.begin, stretch.end);
      at::mm_out(target, columns(weights, prompt, tokens), rows(v, stretch.begin, stretch.end));
      if (prompt > 0) {
        at::addmm_out(target, target, columns(weights, 0, prompt), rows(v, stretch.prompt_begin, stretch.prompt_end));
      }
    });
  });
  return out;
}

at::Tensor attention_backward(const at::Tensor& d_out, const at::Tensor& qkv, std::span<const Segment> segments,
                              const AttentionShape& shape) {
  const std::int64_t dim = shape.head_dim;
  const double scale = 1.0 / std::sqrt(static_cast<double>(dim));
  at::Tensor d_qkv = at::zeros_like(qkv);
  const at::Tensor d_keys = at::zeros({qkv.size(0), shape.heads * dim}, qkv.options());
  const at::Tensor d_values = at::zeros_like(d_keys);
  for_each_head(segments, shape, [&](const Segment& segment, std::int64_t head) {
    const HeadColumns first = columns_of(shape, head);
    const at::Tensor q = columns(qkv, first.q, dim), k = columns(qkv, first.k, dim), v = columns(qkv, first.v, dim);
    const at::Tensor d_q = columns(d_qkv, first.q, dim), d_head = columns(d_out, head * dim, dim);
    const at::Tensor d_k = columns(d_keys, head * dim, dim), d_v = columns(d_values, head * dim, dim);
    for_each_stretch(segment, [&](const Stretch& stretch) {
      const std::int64_t prompt = stretch.prompt_end - stretch.prompt_begin;
      const at::Tensor weights = weights_of(stretch, q, k, scale);
      const at::Tensor query = rows(q, stretch.begin, stretch.end);
      const at::Tensor d = rows(d_head, stretch.begin, stretch.end);
      at::Tensor d_weights = at::empty_like(weights);
      // The keys come in two parts: `column` is where a part begins in the weights.
      const auto each_part = [&](auto f) {
        if (prompt > 0) f(std::int64_t{0}, stretch.prompt_begin, stretch.prompt_end);
        f(prompt, stretch.begin, stretch.end);
      };
      each_part([&](std::int64_t column, std::int64_t begin, std::int64_t end) {
        const at::Tensor part = columns(weights, column, end - begin);
        at::Tensor d_part = columns(d_weights, column, end - begin);
        at::mm_out(d_part, d, rows(v, begin, end).t());
        rows(d_v, begin, end).addmm_(part.t(), d);
      });
      const at::Tensor d_scores = at::_softmax_backward_data(d_weights, weights, 1, qkv.scalar_type());
      at::Tensor d_query = rows(d_q, stretch.begin, stretch.end);
      each_part([&](std::int64_t column, std::int64_t begin, std::int64_t end) {
        const at::Tensor d_part = columns(d_scores, column, end - begin);
        d_query.addmm_(d_part, rows(k, begin, end), /*beta=*/1, /*alpha=*/scale);
        rows(d_k, begin, end).addmm_(d_part.t(), query, /*beta=*/1, /*alpha=*/scale);
      });
    });
  });
  sum_over_query_heads(d_keys, shape, shape.heads * dim, d_qkv);
  sum_over_query_heads(d_values, shape, (shape.heads + shape.kv_heads) * dim, d_qkv);
  return d_qkv;
}

}  // namespace flotilla
