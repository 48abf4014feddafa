#include "engine/engine.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/clock.h"
#include "base/thread_pool.h"
#include "engine/float_mode.h"
#include "engine/forward_pass.h"
#include "engine/kernels.h"
#include "engine/kv_pool.h"
#include "engine/packed_weights.h"
#include "engine/sampler.h"
#include "engine/thread_choice.h"

namespace flotilla {
namespace {

constexpr int kThreadsMax = 256;

struct Sequence {
  bool open = false;
  std::int32_t length = 0;
  std::vector<std::int32_t> blocks;  // of the KV pool; never reallocated while open, rows point into it
};

// One readout of the present slice: which row it reads, and what.
struct PendingReadout {
  std::int32_t row = 0;
  const Readout* readout = nullptr;
};

std::int64_t block_elements(const ModelDescription& d) {
  return std::int64_t{d.layers} * d.kv_heads * 2 * kBlockTokens * d.head_dim;
}

// What a slice costs, in products of weights: below some rows reading the weights is what takes time.
std::int64_t slice_work(const ModelDescription& d, std::int64_t rows, std::int64_t readouts) {
  constexpr std::int64_t kRowsForOneRead = 8;
  const std::int64_t head = std::int64_t{d.vocabulary} * d.hidden;
  const std::int64_t layer =
      std::int64_t{d.hidden} * (2 * d.heads + 2 * d.kv_heads) * d.head_dim + 3 * std::int64_t{d.hidden} * d.ffn;
  return d.layers * layer * std::max(rows, kRowsForOneRead) +
         (readouts == 0 ? 0 : head * std::max(readouts, kRowsForOneRead));
}

std::int32_t blocks_for(std::int32_t tokens) { return (tokens + kBlockTokens - 1) / kBlockTokens; }

Status check_description(const ModelDescription& d) {
  const auto sized = [&](TensorIndex index, std::int64_t rows, std::int64_t cols, TensorKind kind) {
    if (index < 0 || static_cast<std::size_t>(index) >= d.tensors.size()) return false;
    const TensorSpec& spec = d.tensors[static_cast<std::size_t>(index)];
    return spec.kind == kind && spec.rows == rows && spec.cols == cols;
  };
  if (d.layers < 1 || d.hidden < 1 || d.heads < 1 || d.kv_heads < 1 || d.ffn < 1 || d.vocabulary < 1 || d.context < 1) {
    return invalid_argument("engine: a size of the model is not positive");
  }
  if (d.hidden % kLanes != 0 || d.ffn % kLanes != 0 || d.head_dim < kLanes || d.head_dim % kLanes != 0) {
    return invalid_argument(fmt::format("engine: hidden {}, ffn {} and head_dim {} have to be multiples of {}",
                                        d.hidden, d.ffn, d.head_dim, kLanes));
  }
  if (d.head_dim > kHeadDimMax) {
    return invalid_argument(fmt::format("engine: head_dim {} is above {}", d.head_dim, kHeadDimMax));
  }
  if (d.heads % d.kv_heads != 0) {
    return invalid_argument(fmt::format("engine: {} heads do not divide into {} KV heads", d.heads, d.kv_heads));
  }
  if (d.heads / d.kv_heads > kQueriesMax) {
    return invalid_argument(
        fmt::format("engine: {} heads share a KV head, at most {}", d.heads / d.kv_heads, kQueriesMax));
  }
  if (d.blocks.size() != static_cast<std::size_t>(d.layers)) {
    return invalid_argument(fmt::format("engine: {} blocks for {} layers", d.blocks.size(), d.layers));
  }
  const std::int64_t q = std::int64_t{d.heads} * d.head_dim;
  const std::int64_t kv = std::int64_t{d.kv_heads} * d.head_dim;
  constexpr TensorKind kMatrix = TensorKind::kMatrix;
  constexpr TensorKind kVector = TensorKind::kVector;
  bool fits = sized(d.embedding, d.vocabulary, d.hidden, kMatrix) && sized(d.final_norm, 1, d.hidden, kVector) &&
              sized(d.head, d.vocabulary, d.hidden, kMatrix) && d.tied_embeddings == (d.head == d.embedding);
  for (const DecoderBlock& b : d.blocks) {
    fits = fits && sized(b.attention_norm, 1, d.hidden, kVector) && sized(b.mlp_norm, 1, d.hidden, kVector) &&
           sized(b.q, q, d.hidden, kMatrix) && sized(b.k, kv, d.hidden, kMatrix) && sized(b.v, kv, d.hidden, kMatrix) &&
           sized(b.o, d.hidden, q, kMatrix) && sized(b.gate, d.ffn, d.hidden, kMatrix) &&
           sized(b.up, d.ffn, d.hidden, kMatrix) && sized(b.down, d.hidden, d.ffn, kMatrix) &&
           (!b.q_bias || sized(*b.q_bias, 1, q, kVector)) && (!b.k_bias || sized(*b.k_bias, 1, kv, kVector)) &&
           (!b.v_bias || sized(*b.v_bias, 1, kv, kVector));
  }
  if (!fits) return invalid_argument("engine: the shapes of the tensors do not fit the sizes of the model");
  return ok_status();
}

class CpuEngine final : public Engine {
 public:
  CpuEngine(const ModelDescription& description, const EngineOptions& options)
      : description_(description),
        isa_(options.isa),
        kernels_(kernels_of(options.isa, options.activations == ActivationWidth::kTwo)),
        pool_(options.threads),
        threads_(options.threads),
        scratch_(static_cast<std::size_t>(options.threads)) {}

  Status allocate(std::int64_t kv_blocks) {
    FLOTILLA_ASSIGN_OR_RETURN(weights_, PackedWeights::create(description_, kernels_));
    FLOTILLA_ASSIGN_OR_RETURN(kv_, KvPool::create(kv_blocks, block_elements(description_)));
    FLOTILLA_ASSIGN_OR_RETURN(pass_, ForwardPass::create(description_, kernels_, weights_, kv_, pool_));
    rows_.reserve(ForwardPass::kRowsMax);
    pending_.reserve(ForwardPass::kRowsMax);
    return ok_status();
  }

  const ModelDescription& description() const override { return description_; }
  Isa isa() const override { return isa_; }

  Status load(const GridSource& state, OpenSequences open) override {
    if (open_sequences_ > 0 && open == OpenSequences::kRefuse) {
      return failed_precondition(fmt::format("engine: new weights while {} sequences are open", open_sequences_));
    }
    const FloatMode mode;
    pool_.set_active(pool_.threads());
    const Status status = weights_.load(state, pool_);
    loaded_ = status.ok();
    return status;
  }

  GridTensor tensor(TensorIndex index) const override {
    FLOTILLA_CHECK(loaded_);
    return weights_.unpack(index);
  }

  Result<SequenceId> open() override {
    std::size_t slot = 0;
    while (slot < sequences_.size() && sequences_[slot].open) ++slot;
    if (slot == sequences_.size()) sequences_.emplace_back();
    Sequence& sequence = sequences_[slot];
    sequence.open = true;
    sequence.length = 0;
    sequence.blocks.reserve(static_cast<std::size_t>(blocks_for(description_.context)));
    ++open_sequences_;
    return SequenceId(static_cast<std::int32_t>(slot));
  }

  Result<SequenceId> fork(SequenceId source) override {
    if (!is_open(source)) return not_open(source);
    FLOTILLA_ASSIGN_OR_RETURN(const SequenceId id, open());
    Sequence& to = at(id);
    const Sequence& from = at(source);
    to.length = from.length;
    to.blocks.assign(from.blocks.begin(), from.blocks.end());
    for (const std::int32_t block : to.blocks) kv_.share(block);
    return id;
  }

  void close(SequenceId id) override {
    FLOTILLA_CHECK(is_open(id));
    Sequence& sequence = at(id);
    for (const std::int32_t block : sequence.blocks) kv_.release(block);
    sequence.blocks.clear();
    sequence.open = false;
    --open_sequences_;
  }

  std::int32_t length(SequenceId id) const override {
    FLOTILLA_CHECK(is_open(id));
    return at(id).length;
  }

  std::int64_t blocks_needed(SequenceId id, std::int32_t tokens) const override {
    FLOTILLA_CHECK(is_open(id));
    const Sequence& sequence = at(id);
    if (tokens <= 0) return 0;
    const std::int32_t fresh = blocks_for(sequence.length + tokens) - static_cast<std::int32_t>(sequence.blocks.size());
    return fresh + (writes_shared_block(sequence) ? 1 : 0);
  }

  Result<std::vector<ReadoutResult>> forward(std::span<const Chunk> chunks) override {
    FLOTILLA_RETURN_IF_ERROR(check(chunks));
    FLOTILLA_RETURN_IF_ERROR(reserve(chunks));
    std::vector<ReadoutResult> results;
    const Status status = compute(chunks, results);
    if (!status.ok()) {
      release_reserved(chunks);
      return status;
    }
    for (const Chunk& chunk : chunks) {
      at(chunk.sequence).length += static_cast<std::int32_t>(chunk.tokens.size());
      tokens_computed_ += static_cast<std::int64_t>(chunk.tokens.size());
    }
    return results;
  }

  Result<std::vector<float>> logprobs(std::span<const TokenId> tokens) override {
    if (tokens.empty()) return invalid_argument("engine: no tokens to condition on");
    FLOTILLA_ASSIGN_OR_RETURN(const SequenceId id, open());
    std::vector<float> out(static_cast<std::size_t>(description_.vocabulary));
    const Status status = [&]() -> Status {
      const Chunk chunk{id, tokens, {}};
      FLOTILLA_RETURN_IF_ERROR(check({&chunk, 1}));
      FLOTILLA_RETURN_IF_ERROR(reserve({&chunk, 1}));
      std::vector<ReadoutResult> none;
      FLOTILLA_RETURN_IF_ERROR(compute({&chunk, 1}, none));
      const auto last = static_cast<std::int32_t>(rows_.size() - 1);
      FLOTILLA_ASSIGN_OR_RETURN(float* logits, pass_->logits({&last, 1}));
      const FloatMode mode;
      if (!all_logprobs(kernels_, logits, description_.vocabulary, out.data())) return bad_logits();
      return ok_status();
    }();
    close(id);
    if (!status.ok()) return status;
    tokens_computed_ += static_cast<std::int64_t>(tokens.size());
    return out;
  }

  EngineUsage usage() const override {
    return {.blocks_total = kv_.total(),
            .blocks_used = kv_.total() - kv_.available(),
            .sequences = open_sequences_,
            .tokens_computed = tokens_computed_};
  }

  void give_back(std::int64_t keep_bytes) override {
    kv_.give_back(keep_bytes / (kv_.stride() * static_cast<std::int64_t>(sizeof(std::uint16_t))));
  }

 private:
  bool is_open(SequenceId id) const {
    return id.value() >= 0 && static_cast<std::size_t>(id.value()) < sequences_.size() && at(id).open;
  }
  Sequence& at(SequenceId id) { return sequences_[static_cast<std::size_t>(id.value())]; }
  const Sequence& at(SequenceId id) const { return sequences_[static_cast<std::size_t>(id.value())]; }
  static Status not_open(SequenceId id) {
    return invalid_argument(fmt::format("engine: sequence {} is not open", id.value()));
  }
  static Status bad_logits() { return data_loss("a logit is NaN or infinite"); }

  bool writes_shared_block(const Sequence& sequence) const {
    return sequence.length % kBlockTokens != 0 && kv_.shared(sequence.blocks.back());
  }

  Status check(std::span<const Chunk> chunks) const {
    if (!loaded_) return failed_precondition("engine: no weights are loaded");
    std::vector<bool> seen(sequences_.size());
    for (const Chunk& chunk : chunks) {
      if (!is_open(chunk.sequence)) return not_open(chunk.sequence);
      const auto slot = static_cast<std::size_t>(chunk.sequence.value());
      if (seen[slot]) return invalid_argument(fmt::format("engine: sequence {} appears twice", slot));
      seen[slot] = true;
      const Sequence& sequence = sequences_[slot];
      const auto room = static_cast<std::size_t>(description_.context - sequence.length);
      if (chunk.tokens.size() > room) {
        return invalid_argument(fmt::format("engine: {} tokens after {} pass the context of {}", chunk.tokens.size(),
                                            sequence.length, description_.context));
      }
      for (const TokenId token : chunk.tokens) FLOTILLA_RETURN_IF_ERROR(check_token(token));
      std::int64_t previous = -1;
      for (const Readout& readout : chunk.readouts) {
        if (readout.offset <= previous || static_cast<std::size_t>(readout.offset) >= chunk.tokens.size()) {
          return invalid_argument(fmt::format("engine: readout offset {} after {} in a chunk of {} tokens",
                                              readout.offset, previous, chunk.tokens.size()));
        }
        previous = readout.offset;
        FLOTILLA_RETURN_IF_ERROR(check_sampling(readout.sampling).with_context("engine"));
        if (readout.target) FLOTILLA_RETURN_IF_ERROR(check_token(*readout.target));
        if (readout.top < 0) {
          return invalid_argument(fmt::format("engine: {} most likely tokens to list", readout.top));
        }
      }
    }
    return ok_status();
  }

  Status check_token(TokenId token) const {
    if (token >= 0 && token < description_.vocabulary) return ok_status();
    return invalid_argument(
        fmt::format("engine: token {} lies outside the vocabulary of {}", token, description_.vocabulary));
  }

  // Gives every chunk the blocks it writes to, or none of them.
  Status reserve(std::span<const Chunk> chunks) {
    for (const Chunk& chunk : chunks) {
      Sequence& sequence = at(chunk.sequence);
      const auto tokens = static_cast<std::int32_t>(chunk.tokens.size());
      const std::int64_t needed = blocks_needed(chunk.sequence, tokens);
      if (needed > kv_.available()) {
        const std::int64_t available = kv_.available();
        release_reserved(chunks);
        return resource_exhausted(
            fmt::format("engine: {} KV blocks needed, {} of {} free", needed, available, kv_.total()));
      }
      if (needed == 0) continue;
      if (writes_shared_block(sequence)) {
        const std::int32_t shared = sequence.blocks.back();
        sequence.blocks.back() = kv_.copy(shared);
        kv_.release(shared);
      }
      const auto wanted = static_cast<std::size_t>(blocks_for(sequence.length + tokens));
      while (sequence.blocks.size() < wanted) sequence.blocks.push_back(kv_.take());
    }
    return ok_status();
  }

  void release_reserved(std::span<const Chunk> chunks) {
    for (const Chunk& chunk : chunks) {
      Sequence& sequence = at(chunk.sequence);
      while (sequence.blocks.size() > static_cast<std::size_t>(blocks_for(sequence.length))) {
        kv_.release(sequence.blocks.back());
        sequence.blocks.pop_back();
      }
    }
  }

  // Runs the rows of all chunks in slices; the rows of a slice may belong to any chunks.
  Status compute(std::span<const Chunk> chunks, std::vector<ReadoutResult>& results) {
    std::size_t readouts = 0;
    for (const Chunk& chunk : chunks) readouts += chunk.readouts.size();
    results.resize(readouts);
    std::size_t done = 0;
    rows_.clear();
    pending_.clear();
    for (const Chunk& chunk : chunks) {
      const Sequence& sequence = at(chunk.sequence);
      std::size_t next_readout = 0;
      for (std::size_t i = 0; i < chunk.tokens.size(); ++i) {
        if (rows_.size() == static_cast<std::size_t>(ForwardPass::kRowsMax)) {
          FLOTILLA_RETURN_IF_ERROR(run_slice(results, done));
          rows_.clear();
        }
        if (next_readout < chunk.readouts.size() &&
            chunk.readouts[next_readout].offset == static_cast<std::int32_t>(i)) {
          pending_.push_back({static_cast<std::int32_t>(rows_.size()), &chunk.readouts[next_readout++]});
        }
        rows_.push_back({chunk.tokens[i], sequence.length + static_cast<std::int32_t>(i), sequence.blocks.data()});
      }
    }
    return rows_.empty() ? ok_status() : run_slice(results, done);
  }

  Status run_slice(std::vector<ReadoutResult>& results, std::size_t& done) {
    const auto rows = static_cast<std::int64_t>(rows_.size());
    const auto readouts = static_cast<std::int64_t>(pending_.size());
    pool_.set_active(threads_.threads(rows));
    const auto begin = system_clock().monotonic();
    FLOTILLA_RETURN_IF_ERROR(compute_slice(results, done));
    threads_.add(rows, std::chrono::duration<double>(system_clock().monotonic() - begin).count() /
                           static_cast<double>(slice_work(description_, rows, readouts)));
    return ok_status();
  }

  Status compute_slice(std::vector<ReadoutResult>& results, std::size_t& done) {
    FLOTILLA_RETURN_IF_ERROR(pass_->run(rows_));
    const std::int64_t stride = pass_->logits_stride();
    for (std::size_t begin = 0; begin < pending_.size(); begin += ForwardPass::kHeadRowsMax) {
      const std::size_t count = std::min<std::size_t>(ForwardPass::kHeadRowsMax, pending_.size() - begin);
      std::int32_t picked[ForwardPass::kHeadRowsMax];
      for (std::size_t i = 0; i < count; ++i) picked[i] = pending_[begin + i].row;
      FLOTILLA_ASSIGN_OR_RETURN(float* logits, pass_->logits({picked, count}));
      std::atomic<bool> broken{false};
      const auto read = [&](std::int64_t i, int thread) {
        const FloatMode mode;
        const Readout& readout = *pending_[begin + static_cast<std::size_t>(i)].readout;
        if (!read_distribution(kernels_, logits + i * stride, description_.vocabulary, readout,
                               scratch_[static_cast<std::size_t>(thread)],
                               &results[done + static_cast<std::size_t>(i)])) {
          broken.store(true, std::memory_order_relaxed);
        }
      };
      pool_.run(static_cast<std::int64_t>(count), std::cref(read));
      if (broken.load(std::memory_order_relaxed)) return bad_logits();
      done += count;
    }
    pending_.clear();
    return ok_status();
  }

  const ModelDescription description_;
  const Isa isa_;
  const KernelTable kernels_;
  ThreadPool pool_;
  ThreadChoice threads_;
  PackedWeights weights_;
  KvPool kv_;
  std::unique_ptr<ForwardPass> pass_;
  bool loaded_ = false;

  std::vector<Sequence> sequences_;
  std::int64_t open_sequences_ = 0;
  std::int64_t tokens_computed_ = 0;
  std::vector<ForwardRow> rows_;         // of the present slice
  std::vector<PendingReadout> pending_;  // of the present slice
  std::vector<SamplerScratch> scratch_;  // one a thread
};

// The ISA to run, or invalid_argument.
Result<Isa> resolve(Isa wanted) {
  const std::vector<Isa> isas = supported_isas();
  if (wanted == Isa::kAuto) return isas.back();
  if (std::find(isas.begin(), isas.end(), wanted) != isas.end()) return wanted;
  return invalid_argument(fmt::format("engine: this machine lacks {}", isa_name(wanted)));
}

}  // namespace

Result<std::unique_ptr<Engine>> Engine::create(const ModelDescription& description, const EngineOptions& options) {
  FLOTILLA_RETURN_IF_ERROR(check_description(description));
  if (options.threads < 1 || options.threads > kThreadsMax) {
    return invalid_argument(fmt::format("engine: {} threads lie outside [1, {}]", options.threads, kThreadsMax));
  }
  constexpr std::int64_t kBlocksMax = std::int64_t{1} << 30;
  if (options.kv_blocks < 1 || options.kv_blocks > kBlocksMax) {
    return invalid_argument(fmt::format("engine: {} KV blocks lie outside [1, {}]", options.kv_blocks, kBlocksMax));
  }
  const FloatMode mode;
  EngineOptions resolved = options;
  FLOTILLA_ASSIGN_OR_RETURN(resolved.isa, resolve(options.isa));
  auto engine = std::make_unique<CpuEngine>(description, resolved);
  FLOTILLA_RETURN_IF_ERROR(engine->allocate(options.kv_blocks));
  return std::unique_ptr<Engine>(std::move(engine));
}

Status Engine::load(const GridState& state, OpenSequences open) {
  FLOTILLA_RETURN_IF_ERROR(check_grid(description(), state));
  return load(source_of(state), open);
}

std::int64_t Engine::memory_bytes(const ModelDescription& description, const EngineOptions& options,
                                  std::int64_t rows) {
  const Isa isa = options.isa == Isa::kAuto ? supported_isas().back() : options.isa;
  const KernelTable kernels = kernels_of(isa, options.activations == ActivationWidth::kTwo);
  return PackedWeights::bytes(description, kernels) + options.kv_blocks * block_elements(description) * 2 +
         ForwardPass::bytes(description, kernels, rows);
}

}  // namespace flotilla
