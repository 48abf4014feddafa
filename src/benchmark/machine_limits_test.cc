#include "benchmark/machine_limits.h"

#include <gtest/gtest.h>

#include "base/thread_pool.h"
#include "benchmark/peak_loops.h"

namespace flotilla {
namespace {

TEST(MachineLimits, EveryInstructionSetReadsAllBytes) {
  alignas(64) static std::uint8_t memory[4096];
  for (const Isa isa : supported_isas()) {
    const PeakLoops loops = peak_loops_of(isa);
    for (std::uint8_t& byte : memory) {
      byte = 1;
      ASSERT_NE(loops.read(memory, sizeof(memory)), 0u) << isa_name(isa) << " byte " << &byte - memory;
      byte = 0;
    }
  }
}

TEST(MachineLimits, AreFoundForEveryInstructionSet) {
  for (const Isa isa : supported_isas()) {
    const MachineLimits limits = measure_limits(1, isa).value();
    EXPECT_EQ(limits.isa, isa);
    EXPECT_GT(limits.int8_operations, 0);
    EXPECT_GT(limits.fp32_operations, 0);
    EXPECT_GT(limits.read_bytes, 0);
  }
}

TEST(MachineLimits, SayHowFarApartTwoThreadsAreAndNothingOfOne) {
  EXPECT_EQ(measure_limits(1, Isa::kScalar).value().handoff_seconds, 0);
  EXPECT_GT(measure_limits(2, Isa::kScalar).value().handoff_seconds, 0);
}

TEST(MachineLimits, RefusesNoThreads) {
  EXPECT_EQ(measure_limits(0, Isa::kAuto).status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace flotilla
