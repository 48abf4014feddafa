#include "rollout/memory_plan.h"

#include <gtest/gtest.h>

#include "rollout/sweep.h"
#include "rollout/toy_for_tests.h"

namespace flotilla {
namespace {

MemoryDemand demand() {
  MemoryDemand demand;
  demand.prompt_tokens = 30;
  demand.groups = 4;
  demand.group_size = 3;
  return demand;
}

TEST(MemoryPlan, TakesNoMoreThanASweepCanUse) {
  const Toy toy;
  const auto plan = plan_memory(toy_model().description, toy.rules, demand(), std::int64_t{1} << 40);
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->kv_blocks, sweep_blocks_max(toy.rules, 30, 4, 3));
  EXPECT_GT(plan->versions_bytes, 0);
}

TEST(MemoryPlan, FitsIntoWhatIsThere) {
  const Toy toy;
  const auto roomy = plan_memory(toy_model().description, toy.rules, demand(), std::int64_t{1} << 40).value();
  for (std::int64_t available = 0; available <= roomy.total(); available += roomy.total() / 100) {
    const auto plan = plan_memory(toy_model().description, toy.rules, demand(), available);
    if (plan.ok()) {
      EXPECT_LE(plan->total(), available);
      EXPECT_GE(plan->kv_blocks, sweep_blocks_min(toy.rules, 30));
    } else {
      EXPECT_EQ(plan.status().code(), StatusCode::kResourceExhausted);
      EXPECT_NE(plan.status().message().find("MiB may be used"), std::string::npos);
    }
  }
  EXPECT_TRUE(plan_memory(toy_model().description, toy.rules, demand(), roomy.total()).ok());
}

TEST(AvailableMemory, IsKnownHere) { EXPECT_GT(available_memory(), 1 << 20); }

}  // namespace
}  // namespace flotilla
