#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "benchmark/roofline.h"
#include "engine/engine.h"

namespace flotilla {

// How fast an engine ran, and how fast the machine could at most.
struct Speed {
  double tokens_per_second = 0;
  double least_seconds = 0;  // of the same work, by the roofline
  double int8_seconds = 0;   // of its products of weights alone, at the peak of int8
  double seconds = 0;
  double roofline_share() const { return seconds > 0 ? least_seconds / seconds : 0; }
  double int8_share() const { return seconds > 0 ? int8_seconds / seconds : 0; }
};

// Prompts are random tokens, each sequence's next token is sampled at temperature 1 over the whole vocabulary with its
// logprob. The engine has no open sequences before and after. Errors are the engine's; invalid_argument for a number
// below 1 and for `longest` below `shortest`.

// One prompt of `tokens`, one readout at its end.
Result<Speed> measure_prefill(Engine& engine, const MachineLimits& limits, std::int32_t tokens);

struct DecodeShape {
  std::int32_t sequences = 32;
  std::int32_t prompt = 128;
  std::int32_t group = 8;       // sequences that share a prompt; 1: none do
  std::int32_t generated = 64;  // of each sequence, in as many passes
};
// The prompts are there already: only the passes after them count.
Result<Speed> measure_decode(Engine& engine, const MachineLimits& limits, const DecodeShape& shape);

// What a worker does: `prompts` groups of `samples` sequences, prompts computed once and forked; lengths spread evenly
// over [shortest, longest], that of sequence i is shortest + 37 i mod (longest - shortest + 1) so that another program
// can do the same work; a sequence leaves the batch when it has ended. Tokens generated over the whole time, prompts
// included.
struct RolloutShape {
  std::int32_t prompts = 8;
  std::int32_t samples = 8;
  std::int32_t prompt = 128;
  std::int32_t shortest = 32;
  std::int32_t longest = 96;
};
Result<Speed> measure_rollout(Engine& engine, const MachineLimits& limits, const RolloutShape& shape);

// KV blocks that the measurements take at most.
std::int64_t prefill_blocks(std::int32_t tokens);
std::int64_t decode_blocks(const DecodeShape& shape);
std::int64_t rollout_blocks(const RolloutShape& shape);

}  // namespace flotilla
