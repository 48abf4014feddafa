#include "rollout/memory_plan.h"

#include <gtest/gtest.h>

#include "rollout/sweep.h"
#include "rollout/toy_for_tests.h"
#include "sync/delta_layout.h"

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

TEST(MemoryPlan, CountsAVersionOnItsWayWithItsHistoriesAndTheChangesOfEachThread) {
  const Toy toy;
  const ModelDescription& model = toy_model().description;
  std::int64_t integers = 0;
  for (const TensorSpec& spec : model.tensors) integers += spec.size();
  std::int64_t before = integers + 4 * history_bytes_max(model);
  for (const int threads : {1, 2, 8}) {
    MemoryDemand with = demand();
    with.engine.threads = threads;
    const auto plan = plan_memory(model, toy.rules, with, std::int64_t{1} << 40).value();
    EXPECT_GT(plan.versions_bytes, before);
    before = plan.versions_bytes;
  }
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

TEST(MemoryPlan, SaysWhatASweepTakes) {
  const Toy toy;
  constexpr std::int64_t kMuch = std::int64_t{1} << 40;
  const auto roomy = plan_memory(toy_model().description, toy.rules, demand(), kMuch).value();
  const std::string all = memory_text(roomy, demand(), kMuch);
  EXPECT_NE(all.find("4 groups of 3 episodes take at most"), std::string::npos) << all;
  EXPECT_NE(all.find("1048576 MiB may be used"), std::string::npos) << all;
  EXPECT_EQ(all.find("computed again"), std::string::npos) << all;
  const std::int64_t half = roomy.total() - roomy.kv_bytes / 2;
  const std::string less =
      memory_text(plan_memory(toy_model().description, toy.rules, demand(), half).value(), demand(), half);
  EXPECT_NE(less.find("; 50 % of the keys and values"), std::string::npos) << less;
  EXPECT_NE(less.find("the last episodes wait or are computed again"), std::string::npos) << less;
}

TEST(AvailableMemory, IsKnownHere) { EXPECT_GT(available_memory(), 1 << 20); }

TEST(ResidentMemory, CountsWhatWasTouched) {
  constexpr std::int64_t kBytes = 64 << 20;
  const std::int64_t before = resident_memory();
  const std::vector<char> touched(kBytes, 1);
  const volatile char* const seen = touched.data();  // else nobody asks for the memory
  EXPECT_GT(resident_memory() - before, kBytes * 9 / 10);
  EXPECT_EQ(seen[kBytes / 2], 1);
}

}  // namespace
}  // namespace flotilla
