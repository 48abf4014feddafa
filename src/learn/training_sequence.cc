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

// Targets after the prompt's last token come from every branch: brings equal rows together.
void sort_targets(TrainingSequence& sequence) { std::ranges::stable_sort(sequence.targets, {}, &TrainingTarget::row); }

std::int32_t common_beginning(const TrainingSequence& a, std::int32_t length, const TrainingSequence& b) {
  const auto end = std::min(length, b.prompt);
  return static_cast<std::int32_t>(std::mismatch(a.tokens.begin(), a.tokens.begin() + end, b.tokens.begin()).first -
                                   a.tokens.begin());
}

// `beginning` tokens are those that all of them begin with.
TrainingSequence join(std::span<const TrainingSequence> sequences, std::int32_t beginning) {
  if (sequences.size() == 1) return sequences.front();
  TrainingSequence joined;
  const auto& first = sequences.front().tokens;
  joined.tokens.assign(first.begin(), first.begin() + beginning);
  joined.prompt = beginning;
  for (const TrainingSequence& sequence : sequences) {
    const std::int32_t moved = joined.size() - beginning;
    joined.tokens.insert(joined.tokens.end(), sequence.tokens.begin() + beginning, sequence.tokens.end());
    if (sequence.size() > beginning) joined.branch_ends.push_back(joined.size());
    for (TrainingTarget target : sequence.targets) {
      if (target.row >= beginning) target.row += moved;
      joined.targets.push_back(target);
    }
  }
  sort_targets(joined);
  return joined;
}

}  // namespace

std::vector<TrainingSequence> share_beginnings(std::span<const TrainingSequence> sequences, std::int32_t max_tokens) {
  std::vector<TrainingSequence> joined;
  for (std::size_t begin = 0; begin < sequences.size();) {
    const TrainingSequence& first = sequences[begin];
    std::int32_t beginning = first.prompt;
    std::int64_t tokens = first.size();  // of all so far, without sharing
    std::size_t end = begin + 1;
    for (; end < sequences.size(); ++end) {
      const std::int32_t common = common_beginning(first, beginning, sequences[end]);
      const auto before = static_cast<std::int64_t>(end - begin);
      const std::int64_t saved = common * before;
      if (saved <= beginning * (before - 1) || tokens + sequences[end].size() - saved > max_tokens) break;
      tokens += sequences[end].size();
      beginning = common;
    }
    joined.push_back(join(sequences.subspan(begin, end - begin), beginning));
    begin = end;
  }
  return joined;
}

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
  std::ranges::for_each(sequences, sort_targets);
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
