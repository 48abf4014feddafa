#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "model/description.h"
#include "model/grid.h"

namespace flotilla {

// The number of the arithmetic that the engine implements (docs/design/arithmetic.md). Stored in every result.
inline constexpr int kArithmetic = 1;
inline constexpr int kBlockTokens = 16;  // positions in one KV block

enum class Isa { kAuto, kScalar, kAvx2, kAvxVnni, kAvx512, kAmx, kNeon, kNeonDot };
std::string_view isa_name(Isa isa);
// What this machine can run, best last. Always contains kScalar.
std::vector<Isa> supported_isas();

// Bytes an activation. arithmetic = 1 is kOne; kTwo exists so that its cost and its gain can be measured.
enum class ActivationWidth { kOne, kTwo };

struct EngineOptions {
  int threads = 1;
  Isa isa = Isa::kAuto;
  ActivationWidth activations = ActivationWidth::kOne;
  // Size of the KV pool in blocks of kBlockTokens positions; one block holds all layers.
  std::int64_t kv_blocks = 0;
};

struct SamplingParams {
  float temperature =
      1.0f;  // > 0 and finite; 0 takes the most likely token (lowest id on ties), with its logprob at T = 1
  std::int32_t top_k = 0;  // 0: all
  float top_p = 1.0f;      // in (0, 1]
};

// Names the random number of one token: Philox 4x32-10 keyed by the run's seed, counter (group, episode, position).
struct SampleKey {
  std::uint64_t seed = 0;      // of the run
  std::uint64_t group = 0;     // first 8 bytes of the group's id
  std::uint32_t episode = 0;   // index in the group
  std::uint32_t position = 0;  // index of the sampled token in its sequence
};

// What to read at one position: a sample, and, where asked, the logprob of a given token.
struct Readout {
  std::int32_t offset = 0;  // index in Chunk::tokens: the distribution after this token
  SamplingParams sampling;
  SampleKey key;
  std::optional<TokenId> target;
  std::int32_t top = 0;  // how many of the most likely tokens to list
};

struct TokenLogprob {
  TokenId token = 0;
  float logprob = 0;
};

struct ReadoutResult {
  TokenId token = 0;  // sampled
  float logprob = 0;  // of `token` under the distribution sampled from (temperature applied, top-p/top-k renormalised)
  float target_logprob = 0;  // of `target` under the same distribution; -infinity when top-p/top-k cut it off
  TokenId most_likely = 0;   // lowest id on ties
  // The `top` most likely tokens under the same distribution, falling, ties by rising id. Fewer where top-p/top-k kept
  // fewer.
  std::vector<TokenLogprob> top = {};
};

// A sequence of tokens with its KV. Handles are small numbers that the engine gives out and takes back.
using SequenceId = StrongId<struct SequenceTag, std::int32_t>;

// Tokens to append to one sequence in a forward pass, and what to read from it. Readout offsets rise.
struct Chunk {
  SequenceId sequence;
  std::span<const TokenId> tokens;
  std::span<const Readout> readouts;
};

// Whether new weights may come while sequences are open. kKeep: their KV stays as the weights before computed it, and
// what is appended to them reads it.
enum class OpenSequences { kRefuse, kKeep };

struct EngineUsage {
  std::int64_t blocks_total = 0;
  std::int64_t blocks_used = 0;  // shared blocks count once
  std::int64_t sequences = 0;
  std::int64_t tokens_computed = 0;  // since creation
};

// Exact int8 inference (design: "The engine and its arithmetic"): the same weights, tokens, seed and parameters give
// the same ids and logprobs, bit for bit, on every ISA, with every number of threads, in every batch, computed in one
// pass or token by token, with or without a shared prefix. One thread calls; the engine uses `threads` of its own.
class Engine {
 public:
  // resource_exhausted when memory for weights or the KV pool cannot be had; invalid_argument for options out of range,
  // an ISA this machine lacks, or sizes that the kernels do not take.
  static Result<std::unique_ptr<Engine>> create(const ModelDescription& description, const EngineOptions& options);
  virtual ~Engine() = default;

  // Bytes that an engine will take: packed weights, KV pool, scratch for `rows` rows.
  static std::int64_t memory_bytes(const ModelDescription& description, const EngineOptions& options,
                                   std::int64_t rows);

  virtual const ModelDescription& description() const = 0;
  virtual Isa isa() const = 0;

  // Takes new weights. failed_precondition while sequences are open that are not to be kept; data_loss when a state is
  // not on the grid of the description. A source is of a state that was checked; it may read this engine's tensors,
  // each before it shows it. After an error of the source no weights are loaded.
  Status load(const GridState& state, OpenSequences open = OpenSequences::kRefuse);
  virtual Status load(const GridSource& state, OpenSequences open = OpenSequences::kRefuse) = 0;
  // Of the weights as they were loaded, to the last bit. Safe beside everything but load().
  virtual GridTensor tensor(TensorIndex index) const = 0;

  // An empty sequence; and one that shares all tokens of another (blocks are copied only when one of them writes).
  virtual Result<SequenceId> open() = 0;
  virtual Result<SequenceId> fork(SequenceId source) = 0;
  virtual void close(SequenceId sequence) = 0;
  virtual std::int32_t length(SequenceId sequence) const = 0;
  // Blocks that appending `tokens` to a sequence will take from the pool.
  virtual std::int64_t blocks_needed(SequenceId sequence, std::int32_t tokens) const = 0;

  // Appends each chunk to its sequence (each sequence at most once a call) and returns the readouts of all chunks in
  // order. The split into calls and chunks never changes a result. On an error nothing was appended: resource_exhausted
  // when the pool has too few free blocks, invalid_argument for ids outside the vocabulary, positions past the context,
  // or sampling parameters out of range, data_loss naming the layer when activations are NaN or infinite.
  virtual Result<std::vector<ReadoutResult>> forward(std::span<const Chunk> chunks) = 0;

  // Log-probabilities of the whole vocabulary after the last token of `tokens`, in a sequence of its own. For tests and
  // tools.
  virtual Result<std::vector<float>> logprobs(std::span<const TokenId> tokens) = 0;

  virtual EngineUsage usage() const = 0;

  // Gives memory of free KV blocks back to the system, which page by page is had again when they are used; about
  // `keep_bytes` of it stay, to be used first.
  virtual void give_back(std::int64_t keep_bytes) = 0;
};

}  // namespace flotilla
