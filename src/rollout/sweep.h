#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <stop_token>
#include <vector>

#include "base/status.h"
#include "engine/engine.h"
#include "rollout/episode_builder.h"
#include "rollout/group.h"
#include "sync/subscriber.h"

namespace flotilla {

// What becomes of the keys and values of running episodes when their weights change.
enum class KvAfterSwap {
  kRecompute,  // the new weights compute them again
  kKeep,       // they stay; only what comes after is computed with the new weights
};

struct SweepSettings {
  std::uint64_t seed = 0;  // SampleKey::seed
  SamplingParams sampling;
  Version version;  // of the weights that the engine holds
  Sha256Digest state;
  KvAfterSwap kv = KvAfterSwap::kRecompute;
  // Tokens of one forward call. Never changes a result; more is faster up to some 64, less answers a stop sooner.
  std::int32_t rows_per_call = 64;
  // What prompts have in common is computed once and forked. Never changes a result; off, each episode computes its own
  // prompt, to measure what sharing saves.
  bool share_prefixes = true;
};

// One group to be decoded.
struct SweepItem {
  Task task;
  std::uint64_t sample_group = 0;  // SampleKey::group
  std::int32_t episodes = 1;
};

struct SweepReport {
  std::int64_t groups = 0;
  std::int64_t episodes = 0;
  std::int64_t prompt_tokens = 0;  // what all prompts begin with once, and the rest of each; or each episode's own
  std::int64_t model_tokens = 0;
  std::int64_t environment_tokens = 0;
  std::int64_t calls = 0;      // of Engine::forward
  std::int64_t evictions = 0;  // of sequences, for want of KV blocks or of the machine's memory: computed again later
  std::int64_t swaps = 0;      // versions taken after the first
};

struct FinishedGroup {
  std::size_t item = 0;  // index among the items; those that were added count on
  std::int32_t prompt_tokens = 0;
  std::vector<Episode> episodes;
  SweepReport so_far;  // of the sweep, with this group
};

// Where a sweep meets the outside: all are called on its thread, between two forward calls, and hold up the next one.
struct SweepHooks {
  // As soon as a group's last episode has ended. An error ends the sweep.
  std::function<Status(FinishedGroup)> on_group;
  // Optional: a version above the present one that is to take its place now, or none. Running episodes go on with it;
  // their spans say from where.
  std::function<std::optional<NextVersion>()> newer = nullptr;
  // Optional: the engine holds the version that `newer` gave, and the sweep lets go of its weights.
  std::function<void(Version)> on_swap = nullptr;
  // Optional, asked when as many episodes have ended as a group has that is to take their place: a group to add, or
  // none for now. It is computed with the present version.
  std::function<Result<std::optional<SweepItem>>()> refill = nullptr;
  // Optional, called before each forward call; may take its time. How many groups may be in flight, at least 1: those
  // beyond are closed and computed again later.
  std::function<std::int64_t()> between_calls = nullptr;
};

// Decodes all items together as one batch. What all prompts begin with is computed once, and so is each group's prompt;
// both are forked. An episode keeps its KV across turns; observations are appended in the same forward calls as the
// other episodes' next tokens; an episode that has ended leaves the batch. When the KV pool is too small for all, the
// last ones wait or are computed again: exact arithmetic makes that invisible in the result, which depends on seed,
// item and weights only. Weights may change between two forward calls (SweepHooks::newer): prompts are then computed
// anew for the episodes that begin later, and which version wrote which token, in which context, depends on when that
// was; Episode::spans say it all, so that the episode can be computed again. The engine is left with the last version.
//
// `stop` is looked at between forward calls: cancelled. All sequences are closed in every case. resource_exhausted when
// the pool cannot hold a single episode; other errors are the engine's, the environment's or a hook's.
Result<SweepReport> run_sweep(Engine& engine, const EpisodeRules& rules, const SweepSettings& settings,
                              std::span<const SweepItem> items, const SweepHooks& hooks, std::stop_token stop = {});

// KV blocks that no sweep of `groups` groups can exceed while its weights stay and no group is added; and the least
// with which one episode always fits.
std::int64_t sweep_blocks_max(const EpisodeRules& rules, std::int32_t prompt_tokens, std::int64_t groups,
                              std::int64_t group_size, bool share_prefixes = true);
std::int64_t sweep_blocks_min(const EpisodeRules& rules, std::int32_t prompt_tokens);

}  // namespace flotilla
