#include "benchmark/engine_benchmark.h"

#include <gtest/gtest.h>

#include "benchmark/small_model_for_tests.h"

namespace flotilla {
namespace {

constexpr MachineLimits kLimits{
    .isa = Isa::kScalar, .threads = 1, .int8_operations = 1e6, .fp32_operations = 1e6, .read_bytes = 1e6};

std::unique_ptr<Engine> engine(std::int64_t kv_blocks) {
  auto engine = Engine::create(small_model().description, {.threads = 1, .kv_blocks = kv_blocks}).value();
  EXPECT_TRUE(engine->load(small_model().state).ok());
  return engine;
}

void expect_idle(const Engine& engine) {
  EXPECT_EQ(engine.usage().sequences, 0);
  EXPECT_EQ(engine.usage().blocks_used, 0);
}

TEST(EngineBenchmark, PrefillComputesThePromptOnce) {
  const auto engine = flotilla::engine(prefill_blocks(40));
  const Speed speed = measure_prefill(*engine, kLimits, 40).value();
  EXPECT_EQ(engine->usage().tokens_computed, 40);
  EXPECT_NEAR(speed.tokens_per_second * speed.seconds, 40, 1e-6);
  EXPECT_GT(speed.roofline_share(), 0);
  EXPECT_LT(speed.roofline_share(), 1);
  expect_idle(*engine);
}

TEST(EngineBenchmark, DecodeCountsThePassesAfterThePrompts) {
  for (const std::int32_t group : {1, 4}) {
    const DecodeShape shape{.sequences = 6, .prompt = 20, .group = group, .generated = 5};
    const auto engine = flotilla::engine(decode_blocks(shape));
    const Speed speed = measure_decode(*engine, kLimits, shape).value();
    EXPECT_NEAR(speed.tokens_per_second * speed.seconds, 30, 1e-6);
    EXPECT_EQ(engine->usage().tokens_computed, (group == 1 ? 6 : 2) * 19 + 30);
    expect_idle(*engine);
  }
}

TEST(EngineBenchmark, RolloutsEndAtTheirLengths) {
  const RolloutShape shape{.prompts = 3, .samples = 4, .prompt = 20, .shortest = 2, .longest = 9};
  const auto engine = flotilla::engine(rollout_blocks(shape));
  const Speed speed = measure_rollout(*engine, kLimits, shape).value();
  const double tokens = speed.tokens_per_second * speed.seconds;
  // Lengths of the twelve, 2 + 37 i mod 8: 2 7 4 9 6 3 8 5 2 7 4 9.
  EXPECT_EQ(std::llround(tokens), 66);
  EXPECT_EQ(engine->usage().tokens_computed, 3 * 19 + std::llround(tokens));
  expect_idle(*engine);
}

TEST(EngineBenchmark, RefusesNumbersThatMakeNoSense) {
  const auto engine = flotilla::engine(8);
  EXPECT_EQ(measure_prefill(*engine, kLimits, 0).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(measure_decode(*engine, kLimits, {.group = 0}).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(measure_rollout(*engine, kLimits, {.shortest = 9, .longest = 8}).status().code(),
            StatusCode::kInvalidArgument);
}

TEST(EngineBenchmark, SaysWhenThePoolIsTooSmallAndClosesItsSequences) {
  const auto engine = flotilla::engine(4);
  EXPECT_EQ(measure_rollout(*engine, kLimits, {}).status().code(), StatusCode::kResourceExhausted);
  expect_idle(*engine);
}

}  // namespace
}  // namespace flotilla
