#include "engine/forward_pass.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "engine/float_mode.h"
#include "engine/sampler.h"

namespace flotilla {
namespace {

// Rows that one thread takes at a time: about 10 microseconds of work, well above the cost of sharing it.
constexpr std::int64_t kNormGrain = 16;
constexpr std::int64_t kRopeGrain = 8;
constexpr std::int64_t kMlpGrain = 8;
// Rows for which it pays to read the weights once more.
constexpr std::int64_t kPartRows = 16;

// An odd number of cache lines apart, rows use all sets of the caches; widths that are multiples of 4096 bytes would
// have all of them in one.
std::int64_t odd_lines(std::int64_t bytes) { return ((bytes + 63) / 64 | 1) * 64; }
// In floats, of rows of so many floats.
std::int64_t stride_of(std::int64_t width) { return odd_lines(width * 4) / 4; }

struct Sizes {
  std::int64_t x, normed, wide, mixed, logits, q, scales;  // bytes, rounded up to 64
  std::int64_t total() const { return x + normed + wide + mixed + logits + q + scales; }
};

std::int64_t q_dim(const ModelDescription& d) { return std::int64_t{d.heads} * d.head_dim; }
std::int64_t kv_dim(const ModelDescription& d) { return std::int64_t{d.kv_heads} * d.head_dim; }
std::int64_t widest(const ModelDescription& d) {
  return std::max({q_dim(d), std::int64_t{d.hidden}, std::int64_t{d.ffn}});
}

// Strides of the scratch whose rows have more than one width. A row has the same place whatever it holds, so that
// it stays in the cache of the core that works on it.
std::int64_t wide_stride(const ModelDescription& d) {
  return stride_of(std::max(q_dim(d) + 2 * kv_dim(d), 2 * std::int64_t{d.ffn}));
}
std::int64_t quantized_stride(const ModelDescription& d, const KernelTable& kernels) {
  return odd_lines(groups_of(widest(d)) * kActivationGroup * kernels.activation_bytes);
}
std::int64_t scale_stride(const ModelDescription& d) { return stride_of(groups_of(widest(d))); }

Sizes sizes(const ModelDescription& d, const KernelTable& kernels, std::int64_t rows, std::int64_t threads) {
  const auto floats = [](std::int64_t count, std::int64_t width) { return count * stride_of(width) * 4; };
  const std::int64_t head_rows = std::min(rows, ForwardPass::kHeadRowsMax);
  return {.x = floats(rows, d.hidden),
          .normed = floats(threads, widest(d)),
          .wide = rows * wide_stride(d) * 4,
          .mixed = floats(rows, q_dim(d)),
          .logits = floats(head_rows, padded_vocabulary(d.vocabulary)),
          .q = rows * quantized_stride(d, kernels),
          .scales = rows * scale_stride(d) * 4};
}

}  // namespace

std::int64_t ForwardPass::bytes(const ModelDescription& description, const KernelTable& kernels, std::int64_t rows) {
  const std::int64_t tables = std::int64_t{description.context} * description.head_dim * 4;
  return sizes(description, kernels, std::min(rows, kRowsMax), 1).total() + tables;
}

Result<std::unique_ptr<ForwardPass>> ForwardPass::create(const ModelDescription& description,
                                                         const KernelTable& kernels, const PackedWeights& weights,
                                                         KvPool& kv, ThreadPool& pool) {
  std::unique_ptr<ForwardPass> pass(new ForwardPass(description, kernels, weights, kv, pool));
  const Sizes s = sizes(description, kernels, kRowsMax, pool.threads());
  FLOTILLA_ASSIGN_OR_RETURN(pass->memory_, PageBuffer::allocate(s.total(), "engine scratch"));
  std::uint8_t* at = pass->memory_.data();
  const auto next = [&](std::int64_t bytes) { return reinterpret_cast<float*>(std::exchange(at, at + bytes)); };
  pass->x_ = next(s.x);
  pass->normed_ = next(s.normed);
  pass->wide_ = next(s.wide);
  pass->mixed_ = next(s.mixed);
  pass->logits_ = next(s.logits);
  pass->q_ = reinterpret_cast<std::uint8_t*>(next(s.q));
  pass->scales_ = next(s.scales);
  return pass;
}

ForwardPass::ForwardPass(const ModelDescription& description, const KernelTable& kernels, const PackedWeights& weights,
                         KvPool& kv, ThreadPool& pool)
    : description_(description),
      kernels_(kernels),
      weights_(weights),
      kv_(kv),
      pool_(pool),
      rope_(description.context, description.head_dim, description.rope_theta) {}

template <typename Body>
void ForwardPass::parallel(std::int64_t count, std::int64_t grain, const Body& body) {
  const auto piece = [&](std::int64_t index, int thread) {
    const FloatMode mode;
    const std::int64_t end = std::min(count, (index + 1) * grain);
    for (std::int64_t i = index * grain; i < end; ++i) body(i, thread);
  };
  pool_.run((count + grain - 1) / grain, std::cref(piece));
}

QuantizedRows ForwardPass::quantized(std::int64_t cols) const {
  return {.q = q_,
          .stride = quantized_stride(description_, kernels_),
          .scales = scales_,
          .scale_stride = scale_stride(description_),
          .groups = groups_of(cols)};
}

void ForwardPass::multiply(const PackedMatrix& w, std::int64_t rows, float* out, std::int64_t stride, bool add) {
  const QuantizedRows x = quantized(w.cols);
  // Many rows are divided among the threads, as the other loops do it: what one core wrote another need not fetch then,
  // which takes long where their caches are far apart. Parts are of whole eights: a tile of AVX-512's kernels and two
  // of NEON's; AVX2's and AVX-VNNI's are of six rows, and a part ends with a smaller one.
  constexpr std::int64_t kTile = 8;
  const std::int64_t tiles = (rows + kTile - 1) / kTile;
  const std::int64_t parts = std::clamp<std::int64_t>(rows / kPartRows, 1, pool_.active());
  // A few pieces a thread, so that one that is put aside delays little, each of some ten microseconds at most, so that
  // nobody waits long for the last; of whole pairs of panels, which the kernels like best.
  constexpr std::int64_t kPieceProducts = std::int64_t{1} << 22;
  const std::int64_t pairs = (w.panels + 1) / 2;
  const std::int64_t wanted = std::max<std::int64_t>(w.rows * w.cols * rows / kPieceProducts, 4 * pool_.active());
  const std::int64_t pieces = pool_.active() == 1 ? 1 : std::min(pairs, (wanted + parts - 1) / parts);
  parallel(parts * pieces, 1, [&](std::int64_t index, int) {
    const std::int64_t part = index / pieces;
    // Parts begin at different panels: whoever comes second to a line that a far cache has just read waits longer than
    // the memory would take.
    const std::int64_t piece = (index + part * pieces / parts) % pieces;
    const std::int64_t begin = part * tiles / parts * kTile;
    const std::int64_t end = std::min((part + 1) * tiles / parts * kTile, rows);
    kernels_.matmul(w, piece * pairs / pieces * 2, std::min((piece + 1) * pairs / pieces * 2, w.panels), x.from(begin),
                    end - begin, out + begin * stride, stride, add);
  });
}

Status ForwardPass::check(std::string_view what, std::int32_t layer) {
  if (!broken_.load(std::memory_order_relaxed)) return ok_status();
  return data_loss(fmt::format("layer {}: {} is NaN or infinite", layer, what));
}

void ForwardPass::store_kv(const ForwardRow& row, std::int32_t layer, const float* kv, std::uint16_t* halves) {
  const std::int64_t head_dim = description_.head_dim;
  const std::int64_t lane = row.position % kBlockTokens;
  const std::int64_t width = kv_dim(description_);
  kernels_.to_half(kv, 2 * width, halves);
  std::uint16_t* to = kv_.data() + row.table[row.position / kBlockTokens] * kv_.stride() +
                      layer * description_.kv_heads * 2 * kBlockTokens * head_dim;
  for (std::int64_t head = 0; head < description_.kv_heads; ++head) {
    for (std::int64_t d = 0; d < head_dim; ++d) to[d * kBlockTokens + lane] = halves[head * head_dim + d];
    to += kBlockTokens * head_dim;
    std::copy_n(halves + width + head * head_dim, head_dim, to + lane * head_dim);
    to += kBlockTokens * head_dim;
  }
}

Status ForwardPass::run(std::span<const ForwardRow> rows) {
  const ModelDescription& d = description_;
  const auto count = static_cast<std::int64_t>(rows.size());
  const std::int64_t q_width = q_dim(d);
  const std::int64_t kv_width = kv_dim(d);
  const std::int64_t qkv_width = q_width + 2 * kv_width;
  const std::int64_t x_stride = stride_of(d.hidden);
  const std::int64_t wide_stride = flotilla::wide_stride(d);
  const std::int64_t mixed_stride = stride_of(q_width);
  const std::int64_t half = d.head_dim / 2;
  const std::int64_t shared = d.heads / d.kv_heads;
  const float scale = 1.0f / std::sqrt(static_cast<float>(d.head_dim));
  const auto row_of = [&](std::int64_t r) -> const ForwardRow& { return rows[static_cast<std::size_t>(r)]; };
  const auto fail = [&] { broken_.store(true, std::memory_order_relaxed); };
  broken_.store(false, std::memory_order_relaxed);

  const auto norm = [&](const std::vector<float>& weight) {
    const QuantizedRows out = quantized(d.hidden);
    parallel(count, kNormGrain, [&](std::int64_t r, int thread) {
      float* y = normed_ + thread * stride_of(widest(d));
      kernels_.rms_norm(x_ + r * x_stride, weight.data(), d.hidden, d.norm_epsilon, y);
      if (!kernels_.quantize(y, d.hidden, out, r)) fail();
    });
  };

  parallel(count, kNormGrain, [&](std::int64_t r, int) { weights_.embed(row_of(r).token, x_ + r * x_stride); });

  for (std::int32_t layer = 0; layer < d.layers; ++layer) {
    const PackedBlock& block = weights_.block(layer);

    norm(block.attention_norm);
    FLOTILLA_RETURN_IF_ERROR(check("the input of attention", layer));
    multiply(block.qkv, count, wide_, wide_stride, false);

    parallel(count, kRopeGrain, [&](std::int64_t r, int thread) {
      float* q = wide_ + r * wide_stride;
      const ForwardRow& row = row_of(r);
      if (!block.qkv_bias.empty()) kernels_.add(q, block.qkv_bias.data(), qkv_width);
      for (std::int64_t head = 0; head < d.heads + d.kv_heads; ++head) {
        kernels_.rope(q + head * d.head_dim, rope_.cosines(row.position), rope_.sines(row.position), half);
      }
      if (kernels_.largest_bits(q, q_width) >= kInfinityBits ||
          kernels_.largest_bits(q + q_width, 2 * kv_width) >= kHalfOverflowBits) {
        return fail();
      }
      store_kv(row, layer, q + q_width, reinterpret_cast<std::uint16_t*>(normed_ + thread * stride_of(widest(d))));
    });
    FLOTILLA_RETURN_IF_ERROR(check("a query, or a key or value above 65504,", layer));

    // Neighbouring rows often share blocks: those of a prompt, or of a group's sequences. A few pieces a thread.
    const std::int64_t together =
        std::clamp<std::int64_t>(count * d.kv_heads / (4 * pool_.active()), 1, kAttentionRows);
    const std::int64_t parts = (count + together - 1) / together;
    parallel(parts * d.kv_heads, 1, [&](std::int64_t item, int) {
      const std::int64_t head = item % d.kv_heads;
      const std::int64_t begin = item / d.kv_heads * together;
      const std::int64_t end = std::min(begin + together, count);
      AttentionRow attending[kAttentionRows];
      for (std::int64_t r = begin; r < end; ++r) {
        attending[r - begin] = {.q = wide_ + r * wide_stride + head * shared * d.head_dim,
                                .out = mixed_ + r * mixed_stride + head * shared * d.head_dim,
                                .table = row_of(r).table,
                                .keys = row_of(r).position + 1};
      }
      kernels_.attend({.rows = attending,
                       .row_count = static_cast<int>(end - begin),
                       .queries = static_cast<int>(shared),
                       .head_dim = d.head_dim,
                       .scale = scale,
                       .kv = kv_.data() + (layer * d.kv_heads + head) * 2 * kBlockTokens * d.head_dim,
                       .block_stride = kv_.stride()});
    });
    const QuantizedRows mixed = quantized(q_width);
    parallel(count, kNormGrain, [&](std::int64_t r, int) {
      if (!kernels_.quantize(mixed_ + r * mixed_stride, q_width, mixed, r)) fail();
    });
    FLOTILLA_RETURN_IF_ERROR(check("the output of attention", layer));
    multiply(block.o, count, x_, x_stride, true);

    norm(block.mlp_norm);
    FLOTILLA_RETURN_IF_ERROR(check("the input of the MLP", layer));
    multiply(block.gate_up, count, wide_, wide_stride, false);
    const QuantizedRows activated = quantized(d.ffn);
    parallel(count, kMlpGrain, [&](std::int64_t r, int thread) {
      float* y = normed_ + thread * stride_of(widest(d));
      const float* gate = wide_ + r * wide_stride;
      kernels_.swiglu(gate, gate + d.ffn, d.ffn, y);
      if (!kernels_.quantize(y, d.ffn, activated, r)) fail();
    });
    FLOTILLA_RETURN_IF_ERROR(check("the inside of the MLP", layer));
    multiply(block.down, count, x_, x_stride, true);
  }
  return ok_status();
}

Result<float*> ForwardPass::logits(std::span<const std::int32_t> picked) {
  const ModelDescription& d = description_;
  const auto count = static_cast<std::int64_t>(picked.size());
  const QuantizedRows out = quantized(d.hidden);
  parallel(count, kNormGrain, [&](std::int64_t i, int thread) {
    float* y = normed_ + thread * stride_of(widest(d));
    const float* x = x_ + picked[static_cast<std::size_t>(i)] * stride_of(d.hidden);
    kernels_.rms_norm(x, weights_.final_norm().data(), d.hidden, d.norm_epsilon, y);
    if (!kernels_.quantize(y, d.hidden, out, i)) broken_.store(true, std::memory_order_relaxed);
  });
  if (broken_.load(std::memory_order_relaxed)) return data_loss("the input of the head is NaN or infinite");
  multiply(weights_.head(), count, logits_, logits_stride(), false);
  return logits_;
}

std::int64_t ForwardPass::logits_stride() const { return stride_of(padded_vocabulary(description_.vocabulary)); }

}  // namespace flotilla
