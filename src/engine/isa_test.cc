#include <gtest/gtest.h>

#include <cstdlib>

#include "engine/engine.h"
#include "engine/kernels.h"

namespace flotilla {
namespace {

TEST(Isa, EveryOneThatTheMachineHasHasItsKernelsAndAName) {
  ASSERT_EQ(supported_isas().front(), Isa::kScalar);
  for (const Isa isa : supported_isas()) {
    EXPECT_NE(isa_name(isa), "unknown");
    for (const bool two_bytes : {false, true}) EXPECT_NE(kernels_of(isa, two_bytes).matmul, nullptr) << isa_name(isa);
  }
}

// The tests named engine.on_PROCESSOR run under an emulator that has just that.
TEST(Isa, TheBestOneIsThatOfTheProcessor) {
  const char* expected = std::getenv("FLOTILLA_EXPECTED_ISA");
  if (expected == nullptr) GTEST_SKIP() << "FLOTILLA_EXPECTED_ISA does not say what to expect";
  EXPECT_EQ(isa_name(supported_isas().back()), expected);
}

}  // namespace
}  // namespace flotilla
