#include "rollout/memory_plan.h"

#include <algorithm>
#include <fstream>
#include <optional>
#include <string>

#include <fmt/format.h>

#include "rollout/sweep.h"
#include "sync/version_parts.h"

namespace flotilla {
namespace {

constexpr double kMiB = 1 << 20;
constexpr std::uint64_t kPlannedTasks = 16;
constexpr std::int32_t kPromptSlack = 64;  // tokens that a longer prompt may have

// The number behind a name in a file of lines "NAME NUMBER".
std::optional<std::int64_t> number_in(const char* path, std::string_view name) {
  std::ifstream file(path);
  std::string word;
  std::int64_t number = 0;
  while (file >> word) {
    if (word == name && file >> number) return number;
    file.ignore(1 << 20, '\n');
  }
  return std::nullopt;
}

}  // namespace

std::int64_t available_memory() {
  std::int64_t bytes = number_in("/proc/meminfo", "MemAvailable:").value_or(0) * 1024;
  std::ifstream limit_file("/sys/fs/cgroup/memory.max");
  if (std::int64_t limit = 0; limit_file >> limit) {
    const std::int64_t used = number_in("/sys/fs/cgroup/memory.stat", "anon").value_or(0) +
                              number_in("/sys/fs/cgroup/memory.stat", "shmem").value_or(0);
    bytes = std::min(bytes, std::max<std::int64_t>(0, limit - used));
  }
  return bytes;
}

std::int64_t resident_memory() { return number_in("/proc/self/status", "VmRSS:").value_or(0) * 1024; }

Result<std::int32_t> prompt_tokens_to_plan(const EpisodeRules& rules,
                                           const std::function<Result<Task>(std::uint64_t)>& task) {
  std::int32_t longest = 0;
  for (std::uint64_t i = 0; i < kPlannedTasks; ++i) {
    FLOTILLA_ASSIGN_OR_RETURN(const Task one, task(i));
    FLOTILLA_ASSIGN_OR_RETURN(const auto prompt, episode_prompt(*rules.tokenizer, one));
    longest = std::max(longest, static_cast<std::int32_t>(prompt.size()));
  }
  return std::min(longest + kPromptSlack, rules.context - 1);
}

Result<MemoryPlan> plan_memory(const ModelDescription& model, const EpisodeRules& rules, const MemoryDemand& demand,
                               std::int64_t available) {
  const auto engine_bytes = [&](std::int64_t kv_blocks) {
    EngineOptions options = demand.engine;
    options.kv_blocks = kv_blocks;
    return Engine::memory_bytes(model, options, demand.rows_per_call);
  };
  MemoryPlan plan;
  plan.versions_bytes = version_bytes_max(model, demand.engine.threads);
  const std::int64_t block_bytes = engine_bytes(1) - engine_bytes(0);
  const std::int64_t least = sweep_blocks_min(rules, demand.prompt_tokens);
  const std::int64_t most =
      sweep_blocks_max(rules, demand.prompt_tokens, demand.groups, demand.group_size, demand.share_prefixes);
  const std::int64_t room = (available - plan.versions_bytes - engine_bytes(0)) / block_bytes;
  if (room < least) {
    return resource_exhausted(fmt::format(
        "not enough memory: {:.0f} MiB needed ({:.0f} for the engine, {:.0f} for the keys and values of one episode, "
        "{:.0f} for a new version of the weights), {:.0f} MiB may be used",
        static_cast<double>(plan.versions_bytes + engine_bytes(least)) / kMiB,
        static_cast<double>(engine_bytes(0)) / kMiB, static_cast<double>(least * block_bytes) / kMiB,
        static_cast<double>(plan.versions_bytes) / kMiB, static_cast<double>(available) / kMiB));
  }
  plan.kv_blocks = std::min(room, most);
  plan.kv_blocks_max = most;
  plan.kv_bytes = plan.kv_blocks * block_bytes;
  plan.engine_bytes = engine_bytes(plan.kv_blocks);
  return plan;
}

std::string memory_text(const MemoryPlan& plan, const MemoryDemand& demand, std::int64_t available) {
  const auto mib = [](std::int64_t bytes) { return static_cast<double>(bytes) / kMiB; };
  std::string text = fmt::format(
      "{} groups of {} episodes take at most {:.0f} MiB: {:.0f} for the engine, {:.0f} for keys and values, {:.0f} for "
      "a new version of the weights; {:.0f} MiB may be used",
      demand.groups, demand.group_size, mib(plan.total()), mib(plan.engine_bytes - plan.kv_bytes), mib(plan.kv_bytes),
      mib(plan.versions_bytes), mib(available));
  if (plan.kv_blocks < plan.kv_blocks_max) {
    text += fmt::format(
        "; {:.0f} % of the keys and values that they could have fit: the last episodes wait or are "
        "computed again",
        100.0 * static_cast<double>(plan.kv_blocks) / static_cast<double>(plan.kv_blocks_max));
  }
  return text;
}

}  // namespace flotilla
