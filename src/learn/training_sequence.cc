#include "learn/training_sequence.h"

#include <algorithm>

namespace flotilla {
namespace {

bool truncated(const Episode& episode) {
  return episode.end == EpisodeEnd::kTokenLimit || episode.end == EpisodeEnd::kContext;
}

// One past the last model token; 0 when there is none.
std::int32_t model_end(const Episode& episode) {
  for (std::size_t i = episode.tokens.size(); i > 0; --i) {
    if (episode.sources[i - 1] == TokenSource::kModel) return static_cast<std::int32_t>(i);
  }
  return 0;
}

void add_episode(TrainingSequence& sequence, const Episode& episode, std::int32_t prompt, std::int32_t end,
                 float advantage) {
  const std::int32_t begin = sequence.size();
  // The last target is predicted, never read.
  sequence.tokens.insert(sequence.tokens.end(), episode.tokens.begin() + prompt, episode.tokens.begin() + end - 1);
  sequence.branch_ends.push_back(sequence.size());
  for (std::int32_t i = prompt; i < end; ++i) {
    if (episode.sources[i] != TokenSource::kModel) continue;
    const std::int32_t row = i == prompt ? prompt - 1 : begin + (i - 1 - prompt);
    sequence.targets.push_back({row, episode.tokens[i], episode.logprobs[i], advantage});
  }
}

}  // namespace

std::vector<TrainingSequence> pack_group(const Group& group, std::span<const float> advantages,
                                         const PackOptions& options) {
  std::vector<TrainingSequence> sequences;
  const std::int32_t prompt = group.prompt_tokens;
  for (std::size_t i = 0; i < group.episodes.size(); ++i) {
    const Episode& episode = group.episodes[i];
    const std::int32_t end = model_end(episode);
    if (end <= prompt || (options.mask_truncated && truncated(episode)) ||
        (options.skip_without_signal && advantages[i] == 0)) {
      continue;
    }
    const bool fits = !sequences.empty() && sequences.back().size() + (end - 1 - prompt) <= options.max_tokens;
    if (!options.share_prompt || !fits) {
      TrainingSequence& next = sequences.emplace_back();
      next.tokens.assign(episode.tokens.begin(), episode.tokens.begin() + prompt);
      next.prompt = prompt;
    }
    add_episode(sequences.back(), episode, prompt, end, advantages[i]);
  }
  // Targets after the prompt's last token come from every branch: bring equal rows together.
  for (TrainingSequence& sequence : sequences) {
    std::stable_sort(sequence.targets.begin(), sequence.targets.end(),
                     [](const TrainingTarget& a, const TrainingTarget& b) { return a.row < b.row; });
  }
  return sequences;
}

std::vector<MicroBatch> micro_batches(std::span<const TrainingSequence> sequences, std::int32_t max_tokens) {
  std::vector<MicroBatch> batches;
  std::int64_t tokens = 0;
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    if (batches.empty() || tokens + sequences[i].size() > max_tokens) {
      batches.push_back({i, i});
      tokens = 0;
    }
    batches.back().end = i + 1;
    tokens += sequences[i].size();
  }
  return batches;
}

}  // namespace flotilla
