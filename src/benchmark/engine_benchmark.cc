#include "benchmark/engine_benchmark.h"

#include <algorithm>
#include <chrono>

#include "base/clock.h"
#include "base/philox.h"

namespace flotilla {
namespace {

constexpr std::uint64_t kSeed = 3;

std::int64_t blocks_of(std::int64_t tokens) { return (tokens + kBlockTokens - 1) / kBlockTokens; }

double now() { return std::chrono::duration<double>(system_clock().monotonic()).count(); }

std::vector<TokenId> random_prompt(const Engine& engine, std::int64_t number, std::int32_t length) {
  PhiloxStream random(kSeed, static_cast<std::uint64_t>(number));
  std::vector<TokenId> tokens(static_cast<std::size_t>(length));
  for (TokenId& token : tokens) {
    token = static_cast<TokenId>(random.below(static_cast<std::uint64_t>(engine.description().vocabulary)));
  }
  return tokens;
}

struct Running {
  SequenceId sequence;
  TokenId last = 0;
  std::int32_t left = 0;  // tokens still to be generated
  std::int64_t group = 0;
  std::uint32_t index = 0;
};

// Sequences that decode together, and the work that their passes cannot do without.
class Batch {
 public:
  // `prompt`: tokens of every prompt.
  Batch(Engine& engine, std::int32_t prompt) : engine_(engine), prompt_(prompt) {}
  ~Batch() {
    for (const Running& running : running_) engine_.close(running.sequence);
  }
  Batch(const Batch&) = delete;
  Batch& operator=(const Batch&) = delete;

  // Computes a prompt without its last token and forks it for sequences of the given lengths.
  Status add_group(std::int64_t group, std::span<const std::int32_t> lengths) {
    const std::vector<TokenId> tokens = random_prompt(engine_, group, prompt_);
    FLOTILLA_ASSIGN_OR_RETURN(const SequenceId root, engine_.open());
    const Chunk chunk{root, std::span(tokens).first(tokens.size() - 1), {}};
    Status status = engine_.forward({&chunk, 1}).status();
    for (std::size_t i = 0; i < lengths.size() && status.ok(); ++i) {
      auto sequence = engine_.fork(root);
      status = sequence.status();
      if (status.ok()) running_.push_back({*sequence, tokens.back(), lengths[i], group, static_cast<std::uint32_t>(i)});
    }
    engine_.close(root);
    const std::int64_t rows = prompt_ - 1;
    passes_.push_back({.rows = rows, .head_rows = 0, .keys = rows * (rows + 1) / 2, .kv_positions = 0});
    return status;
  }

  bool empty() const { return running_.empty(); }
  std::int64_t generated() const { return generated_; }
  const std::vector<ForwardShape>& passes() const { return passes_; }
  void forget_passes() { passes_.clear(); }

  // One token for every running sequence.
  Status step() {
    readouts_.assign(running_.size(), {});
    std::vector<Chunk> chunks;
    ForwardShape shape;
    std::int64_t group = -1;
    for (std::size_t i = 0; i < running_.size(); ++i) {
      const Running& running = running_[i];
      const std::int64_t length = engine_.length(running.sequence);
      readouts_[i].key = {.seed = kSeed,
                          .group = static_cast<std::uint64_t>(running.group),
                          .episode = running.index,
                          .position = static_cast<std::uint32_t>(length)};
      chunks.push_back({running.sequence, {&running.last, 1}, {&readouts_[i], 1}});
      shape.rows += 1;
      shape.head_rows += 1;
      shape.keys += length + 1;
      // The prompt's positions are read once a group, a sequence's own once each.
      shape.kv_positions += running.group == group ? length - (prompt_ - 1) : length;
      group = running.group;
    }
    FLOTILLA_ASSIGN_OR_RETURN(const auto results, engine_.forward(chunks));
    generated_ += shape.rows;
    passes_.push_back(shape);
    for (std::size_t i = 0; i < running_.size(); ++i) {
      running_[i].last = results[i].token;
      if (--running_[i].left == 0) engine_.close(running_[i].sequence);
    }
    std::erase_if(running_, [](const Running& running) { return running.left == 0; });
    return ok_status();
  }

 private:
  Engine& engine_;
  const std::int32_t prompt_;
  std::vector<Running> running_;
  std::vector<Readout> readouts_;
  std::vector<ForwardShape> passes_;
  std::int64_t generated_ = 0;
};

std::int32_t rollout_length(const RolloutShape& shape, std::int32_t number) {
  return shape.shortest + number * 37 % (shape.longest - shape.shortest + 1);
}

Status check_positive(std::initializer_list<std::int32_t> numbers) {
  if (std::ranges::all_of(numbers, [](std::int32_t number) { return number > 0; })) return ok_status();
  return invalid_argument("a benchmark's numbers are at least 1");
}

Speed speed_of(const Engine& engine, const MachineLimits& limits, std::span<const ForwardShape> passes,
               std::int64_t tokens, double seconds) {
  Speed speed;
  speed.tokens_per_second = static_cast<double>(tokens) / seconds;
  speed.seconds = seconds;
  for (const ForwardShape& shape : passes) {
    const ForwardWork work = forward_work(engine.description(), shape);
    speed.least_seconds += least_seconds(work, limits);
    speed.int8_seconds += work.int8_operations / (limits.int8_operations * 1e9);
  }
  return speed;
}

}  // namespace

Result<Speed> measure_prefill(Engine& engine, const MachineLimits& limits, std::int32_t tokens) {
  FLOTILLA_RETURN_IF_ERROR(check_positive({tokens}));
  const std::vector<TokenId> prompt = random_prompt(engine, 0, tokens);
  FLOTILLA_ASSIGN_OR_RETURN(const SequenceId sequence, engine.open());
  const Readout readout{.offset = tokens - 1, .sampling = {}, .key = {}, .target = std::nullopt};
  const Chunk chunk{sequence, prompt, {&readout, 1}};
  const double begin = now();
  const Status status = engine.forward({&chunk, 1}).status();
  const double seconds = now() - begin;
  engine.close(sequence);
  FLOTILLA_RETURN_IF_ERROR(status);
  const std::int64_t keys = std::int64_t{tokens} * (tokens + 1) / 2;
  const ForwardShape shape{.rows = tokens, .head_rows = 1, .keys = keys, .kv_positions = 0};
  return speed_of(engine, limits, {&shape, 1}, tokens, seconds);
}

Result<Speed> measure_decode(Engine& engine, const MachineLimits& limits, const DecodeShape& shape) {
  FLOTILLA_RETURN_IF_ERROR(check_positive({shape.sequences, shape.prompt, shape.group, shape.generated}));
  Batch batch(engine, shape.prompt);
  for (std::int32_t first = 0; first < shape.sequences; first += shape.group) {
    const std::int32_t count = std::min(shape.group, shape.sequences - first);
    const std::vector<std::int32_t> lengths(static_cast<std::size_t>(count), shape.generated);
    FLOTILLA_RETURN_IF_ERROR(batch.add_group(first, lengths));
  }
  batch.forget_passes();
  const double begin = now();
  while (!batch.empty()) FLOTILLA_RETURN_IF_ERROR(batch.step());
  return speed_of(engine, limits, batch.passes(), batch.generated(), now() - begin);
}

Result<Speed> measure_rollout(Engine& engine, const MachineLimits& limits, const RolloutShape& shape) {
  FLOTILLA_RETURN_IF_ERROR(check_positive({shape.prompts, shape.samples, shape.prompt, shape.shortest, shape.longest}));
  if (shape.longest < shape.shortest) return invalid_argument("the longest sequence is shorter than the shortest");
  Batch batch(engine, shape.prompt);
  const double begin = now();
  for (std::int32_t prompt = 0; prompt < shape.prompts; ++prompt) {
    std::vector<std::int32_t> lengths(static_cast<std::size_t>(shape.samples));
    for (std::int32_t sample = 0; sample < shape.samples; ++sample) {
      lengths[static_cast<std::size_t>(sample)] = rollout_length(shape, prompt * shape.samples + sample);
    }
    FLOTILLA_RETURN_IF_ERROR(batch.add_group(prompt, lengths));
  }
  while (!batch.empty()) FLOTILLA_RETURN_IF_ERROR(batch.step());
  return speed_of(engine, limits, batch.passes(), batch.generated(), now() - begin);
}

std::int64_t prefill_blocks(std::int32_t tokens) { return blocks_of(tokens) + 1; }

std::int64_t decode_blocks(const DecodeShape& shape) {
  const std::int64_t groups = (shape.sequences + shape.group - 1) / shape.group;
  return groups * blocks_of(shape.prompt) + shape.sequences * (blocks_of(shape.generated) + 2);
}

std::int64_t rollout_blocks(const RolloutShape& shape) {
  return decode_blocks({.sequences = shape.prompts * shape.samples,
                        .prompt = shape.prompt,
                        .group = shape.samples,
                        .generated = shape.longest});
}

}  // namespace flotilla
