#include "benchmark/swap_benchmark.h"

#include <gtest/gtest.h>

#include "engine/random_model.h"
#include "sync/delta.h"

namespace flotilla {
namespace {

const RandomModel& model() {
  static const RandomModel model = [] {
    ModelDescription sizes;
    sizes.architecture = "llama";
    sizes.layers = 2;
    sizes.hidden = 32;
    sizes.heads = 2;
    sizes.kv_heads = 1;
    sizes.head_dim = 16;
    sizes.ffn = 64;
    sizes.vocabulary = 100;
    sizes.context = 128;
    sizes.norm_epsilon = 1e-5f;
    sizes.rope_theta = 10000;
    sizes.tied_embeddings = true;
    return random_model(sizes, 1).value();
  }();
  return model;
}

std::unique_ptr<Engine> engine_with(const GridState& state) {
  auto engine = Engine::create(model().description, {.threads = 1, .kv_blocks = 4}).value();
  EXPECT_TRUE(engine->load(state).ok());
  return engine;
}

float logprob(Engine& engine) {
  const SequenceId sequence = engine.open().value();
  const std::vector<TokenId> tokens = {1, 2, 3};
  const Readout readout{.offset = 2, .sampling = {}, .key = {}, .target = 5};
  const Chunk chunk{sequence, tokens, {&readout, 1}};
  const float result = engine.forward({&chunk, 1}).value()[0].target_logprob;
  engine.close(sequence);
  return result;
}

TEST(SwapBenchmark, LeavesTheNewVersionInTheEngine) {
  const GridState after = next_version(model().state);
  const EncodedDelta delta = encode_delta(model().description, model().state, after).value();
  EXPECT_GT(delta.changed, 0);
  const auto engine = engine_with(model().state);
  const auto expected = engine_with(after);
  ASSERT_NE(logprob(*engine), logprob(*expected));
  const SwapTime time = measure_swap(*engine, model().state, delta.bytes, 2).value();
  EXPECT_EQ(logprob(*engine), logprob(*expected));
  EXPECT_GT(time.apply_seconds, 0);
  EXPECT_GT(time.load_seconds, 0);
}

TEST(SwapBenchmark, RefusesADeltaThatIsDamaged) {
  Bytes delta = encode_delta(model().description, model().state, next_version(model().state)).value().bytes;
  delta.pop_back();
  const auto engine = engine_with(model().state);
  EXPECT_EQ(measure_swap(*engine, model().state, delta, 1).status().code(), StatusCode::kDataLoss);
}

}  // namespace
}  // namespace flotilla
