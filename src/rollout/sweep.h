#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <stop_token>
#include <vector>

#include "base/status.h"
#include "engine/engine.h"
#include "rollout/episode_builder.h"
#include "rollout/group.h"

namespace flotilla {

struct SweepSettings {
  std::uint64_t seed = 0;  // SampleKey::seed
  SamplingParams sampling;
  Version version;  // of the weights that the engine holds
  Sha256Digest state;
  // Tokens of one forward call. Never changes a result; more is faster up to some 64, less answers a stop sooner.
  std::int32_t rows_per_call = 64;
  // What prompts have in common is computed once and forked. Never changes a result; off, each episode computes its own
  // prompt, to measure what sharing saves.
  bool share_prefixes = true;
  // Called before each forward call; may take its time. Returns how many groups may be in flight, at least 1: those
  // beyond are closed, the last ones first, and computed again later.
  std::function<std::int64_t()> between_calls = {};
};

// One group to be decoded.
struct SweepItem {
  Task task;
  std::uint64_t sample_group = 0;  // SampleKey::group
  std::int32_t episodes = 1;
};

struct FinishedGroup {
  std::size_t item = 0;
  std::int32_t prompt_tokens = 0;
  std::vector<Episode> episodes;
};

struct SweepReport {
  std::int64_t groups = 0;
  std::int64_t episodes = 0;
  std::int64_t prompt_tokens = 0;  // what all prompts begin with once, and the rest of each; or each episode's own
  std::int64_t model_tokens = 0;
  std::int64_t environment_tokens = 0;
  std::int64_t calls = 0;      // of Engine::forward
  std::int64_t evictions = 0;  // sequences closed for want of KV blocks and computed again later
};

// Decodes all items together as one batch. What all prompts begin with is computed once, and so is each group's prompt;
// both are forked. An episode keeps its KV across turns; observations are appended in the same forward calls as the
// other episodes' next tokens; an episode that has ended leaves the batch. When the KV pool is too small for all, the
// last ones wait or are computed again: exact arithmetic makes that invisible in the result, which depends on seed,
// item and weights only.
//
// `on_group` is called on this thread as soon as a group's last episode has ended; an error from it ends the sweep.
// `stop` is looked at between forward calls: cancelled. All sequences are closed in every case. resource_exhausted when
// the pool cannot hold a single episode; other errors are the engine's or the environment's.
Result<SweepReport> run_sweep(Engine& engine, const EpisodeRules& rules, const SweepSettings& settings,
                              std::span<const SweepItem> items, const std::function<Status(FinishedGroup)>& on_group,
                              std::stop_token stop = {});

// KV blocks that no sweep of `groups` groups can exceed; and the least with which one episode always fits.
std::int64_t sweep_blocks_max(const EpisodeRules& rules, std::int32_t prompt_tokens, std::int64_t groups,
                              std::int64_t group_size, bool share_prefixes = true);
std::int64_t sweep_blocks_min(const EpisodeRules& rules, std::int32_t prompt_tokens);

}  // namespace flotilla
