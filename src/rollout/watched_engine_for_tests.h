#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "engine/engine.h"
#include "rollout/toy_for_tests.h"

namespace flotilla {

// Passes everything on and keeps the sizes of the chunks of each call.
class WatchedEngine final : public Engine {
 public:
  explicit WatchedEngine(std::int64_t kv_blocks = 1000) : engine_(toy_engine(kv_blocks)) {}
  std::vector<std::vector<std::size_t>> calls;
  std::function<Status(std::span<const Chunk>)> before_forward = [](std::span<const Chunk>) { return ok_status(); };

  const ModelDescription& description() const override { return engine_->description(); }
  Isa isa() const override { return engine_->isa(); }
  using Engine::load;
  Status load(const GridSource& state, OpenSequences open) override { return engine_->load(state, open); }
  GridTensor tensor(TensorIndex index) const override { return engine_->tensor(index); }
  Result<SequenceId> open() override { return engine_->open(); }
  Result<SequenceId> fork(SequenceId source) override { return engine_->fork(source); }
  void close(SequenceId sequence) override { engine_->close(sequence); }
  std::int32_t length(SequenceId sequence) const override { return engine_->length(sequence); }
  std::int64_t blocks_needed(SequenceId sequence, std::int32_t tokens) const override {
    return engine_->blocks_needed(sequence, tokens);
  }
  Result<std::vector<ReadoutResult>> forward(std::span<const Chunk> chunks) override {
    FLOTILLA_RETURN_IF_ERROR(before_forward(chunks));
    auto results = engine_->forward(chunks);
    if (results.ok()) {
      auto& sizes = calls.emplace_back();
      for (const Chunk& chunk : chunks) sizes.push_back(chunk.tokens.size());
    }
    return results;
  }
  Result<std::vector<float>> logprobs(std::span<const TokenId> tokens) override { return engine_->logprobs(tokens); }
  EngineUsage usage() const override { return engine_->usage(); }
  void give_back(std::int64_t keep_bytes) override { engine_->give_back(keep_bytes); }

 private:
  std::unique_ptr<Engine> engine_;
};

}  // namespace flotilla
