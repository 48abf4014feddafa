#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "base/status.h"
#include "engine/engine.h"
#include "rollout/episode_builder.h"

namespace flotilla {

// Bytes that this process may still take: what the system says is available, and what its control group leaves. 0 when
// the system does not say.
std::int64_t available_memory();
// Bytes that this process has in memory; 0 when the system does not say.
std::int64_t resident_memory();

// Memory of free KV blocks that a worker keeps between two forward calls; the rest goes back to the system.
inline constexpr std::int64_t kSpareKvBytes = 4 << 20;

struct MemoryDemand {
  EngineOptions engine;  // without kv_blocks
  std::int32_t prompt_tokens = 0;
  std::int64_t groups = 1;  // of a sweep
  std::int64_t group_size = 1;
  bool share_prefixes = true;  // SweepSettings
  std::int32_t rows_per_call = 64;
};

// How long prompts may be, judged by the first 16 tasks that `task` names: their longest and some tokens more, within
// the model's context.
Result<std::int32_t> prompt_tokens_to_plan(const EpisodeRules& rules,
                                           const std::function<Result<Task>(std::uint64_t number)>& task);

struct MemoryPlan {
  std::int64_t kv_blocks = 0;
  std::int64_t kv_blocks_max = 0;   // that the sweep can use
  std::int64_t kv_bytes = 0;        // of kv_blocks; part of the next
  std::int64_t engine_bytes = 0;    // with this KV pool
  std::int64_t versions_bytes = 0;  // the most that a new one takes on its way: version_bytes_max()
  std::int64_t total() const { return engine_bytes + versions_bytes; }
};

// The largest useful KV pool that fits into `available` bytes beside the rest. resource_exhausted, with the numbers,
// when not even one episode would fit.
Result<MemoryPlan> plan_memory(const ModelDescription& model, const EpisodeRules& rules, const MemoryDemand& demand,
                               std::int64_t available);

// What a sweep takes, of what, for people: before a worker starts.
std::string memory_text(const MemoryPlan& plan, const MemoryDemand& demand, std::int64_t available);

}  // namespace flotilla
