#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "learn/training_sequence.h"

namespace flotilla {

// A sequence's place in a batch: the prompt is [begin, prompt_end), branch i [branch_ends[i - 1] or prompt_end,
// branch_ends[i]).
struct Segment {
  std::int64_t begin = 0;
  std::int64_t prompt_end = 0;
  std::vector<std::int64_t> branch_ends;
};

struct PackedTarget {
  std::int64_t row = 0;  // index into PackedBatch::rows
  TokenId token = 0;
  float worker_logprob = 0;
  float advantage = 0;
  std::size_t sequence = 0;  // where it came from
  std::size_t index = 0;
};

// Sequences one behind the other, as one forward pass computes them.
struct PackedBatch {
  std::vector<std::int64_t> tokens;     // [T]
  std::vector<std::int32_t> positions;  // [T], for the rotation
  std::vector<Segment> segments;
  std::vector<std::int64_t> rows;     // [R]: the tokens whose output is read, rising, each once
  std::vector<PackedTarget> targets;  // rows rise
};

PackedBatch pack_batch(std::span<const TrainingSequence> sequences);

}  // namespace flotilla
