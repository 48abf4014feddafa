#include "benchmark/machine_limits.h"

#include <gtest/gtest.h>

#include "base/thread_pool.h"
#include "benchmark/peak_loops.h"

namespace flotilla {
namespace {

TEST(MachineLimits, EveryInstructionSetReadsAllBytes) {
  alignas(64) static std::uint8_t memory[8192];
  memory[5000] = 1;
  for (const Isa isa : supported_isas()) {
    const PeakLoops loops = isa == Isa::kAvx512 ? avx512_peak_loops()
                            : isa == Isa::kAvx2 ? avx2_peak_loops()
                                                : scalar_peak_loops();
    EXPECT_NE(loops.read(memory, 8192), 0u) << isa_name(isa);
    EXPECT_EQ(loops.read(memory, 4096), 0u) << isa_name(isa);
  }
}

TEST(MachineLimits, RefusesNoThreads) {
  EXPECT_EQ(measure_limits(0, Isa::kAuto).status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace flotilla
