#include "learn/torch/packed_batch.h"

namespace flotilla {

PackedBatch pack_batch(std::span<const TrainingSequence> sequences) {
  PackedBatch batch;
  for (std::size_t s = 0; s < sequences.size(); ++s) {
    const TrainingSequence& sequence = sequences[s];
    const auto begin = static_cast<std::int64_t>(batch.tokens.size());
    batch.tokens.insert(batch.tokens.end(), sequence.tokens.begin(), sequence.tokens.end());
    Segment& segment = batch.segments.emplace_back();
    segment.begin = begin;
    segment.prompt_end = begin + sequence.prompt;
    for (std::int32_t i = 0; i < sequence.prompt; ++i) batch.positions.push_back(i);
    std::int32_t branch_begin = sequence.prompt;
    for (const std::int32_t branch_end : sequence.branch_ends) {
      segment.branch_ends.push_back(begin + branch_end);
      for (std::int32_t i = branch_begin; i < branch_end; ++i) {
        batch.positions.push_back(sequence.prompt + i - branch_begin);
      }
      branch_begin = branch_end;
    }
    for (std::size_t i = 0; i < sequence.targets.size(); ++i) {
      const TrainingTarget& target = sequence.targets[i];
      const std::int64_t token_row = begin + target.row;
      if (batch.rows.empty() || batch.rows.back() != token_row) batch.rows.push_back(token_row);
      batch.targets.push_back({static_cast<std::int64_t>(batch.rows.size()) - 1, target.token, target.worker_logprob,
                               target.advantage, s, i});
    }
  }
  return batch;
}

}  // namespace flotilla
