#include "benchmark/swap_benchmark.h"

#include <gtest/gtest.h>

#include "benchmark/small_model_for_tests.h"

namespace flotilla {
namespace {

std::unique_ptr<Engine> engine_with(const GridState& state) {
  auto engine = Engine::create(small_model().description, {.threads = 1, .kv_blocks = 4}).value();
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

TEST(SwapBenchmark, LeavesTheLastVersionInTheEngine) {
  const GridState after = next_version(next_version(small_model().state));
  const auto engine = engine_with(small_model().state);
  const auto expected = engine_with(after);
  ASSERT_NE(logprob(*engine), logprob(*expected));
  const std::vector<SwapTime> times = measure_swaps(*engine, small_model().state, 2, 2).value();
  EXPECT_EQ(logprob(*engine), logprob(*expected));
  ASSERT_EQ(times.size(), 2u) << "version 0 is none that takes the place of another";
  for (const SwapTime& time : times) {
    EXPECT_GT(time.pull_seconds, 0);
    EXPECT_GT(time.load_seconds, 0);
  }
}

TEST(SwapBenchmark, TakesNoStateOfOtherSizes) {
  GridState state = small_model().state;
  state.tensors.pop_back();
  const auto engine = engine_with(small_model().state);
  EXPECT_FALSE(measure_swaps(*engine, state, 1, 1).ok());
}

}  // namespace
}  // namespace flotilla
