#include "benchmark/roofline.h"

#include <gtest/gtest.h>

#include "model/published_sizes.h"

namespace flotilla {
namespace {

const ModelDescription& smollm2() {
  static const ModelDescription model = describe_model(smollm2_135m()).value();
  return model;
}

TEST(Roofline, CountsEachWeightOfASingleTokenOnce) {
  const ForwardWork work = forward_work(smollm2(), {.rows = 1, .head_rows = 1, .keys = 0, .kv_positions = 0});
  const double matrices = 134515008 - 61 * 576;  // all parameters but the norms
  EXPECT_EQ(work.int8_operations, 2 * matrices);
  EXPECT_EQ(work.fp32_operations, 0);
  EXPECT_EQ(work.bytes, matrices + 2 * matrices / 64);
}

TEST(Roofline, CountsKeysForEveryHeadAndTheirBytesOnce) {
  const ForwardWork none = forward_work(smollm2(), {.rows = 2, .head_rows = 0, .keys = 0, .kv_positions = 0});
  const ForwardWork some = forward_work(smollm2(), {.rows = 2, .head_rows = 0, .keys = 300, .kv_positions = 150});
  EXPECT_EQ(some.fp32_operations, 300.0 * 4 * 9 * 64 * 30);
  EXPECT_EQ(some.bytes - none.bytes, 150.0 * 23040);
}

TEST(Roofline, TakesTheLongerOfArithmeticAndReading) {
  const MachineLimits limits{
      .isa = Isa::kScalar, .threads = 1, .int8_operations = 100, .fp32_operations = 10, .read_bytes = 1};
  EXPECT_DOUBLE_EQ(least_seconds({.int8_operations = 1e11, .fp32_operations = 1e10, .bytes = 1e9}, limits), 2);
  EXPECT_DOUBLE_EQ(least_seconds({.int8_operations = 1e11, .fp32_operations = 0, .bytes = 3e9}, limits), 3);
}

}  // namespace
}  // namespace flotilla
