#pragma once

#include <vector>

#include "base/philox.h"
#include "rollout/group.h"

namespace flotilla {

// A group of tokens at random in the lengths of the dictionary task: a prompt of 60 tokens, eight episodes of 120 to
// 150, of which 20 to 30 are the model's.
inline Group random_group(std::uint64_t stream, std::int32_t vocabulary) {
  constexpr int kPrompt = 60;
  PhiloxStream random(2, stream);
  const auto token = [&] { return static_cast<TokenId>(random.below(static_cast<std::uint64_t>(vocabulary))); };
  std::vector<TokenId> prompt;
  for (int i = 0; i < kPrompt; ++i) prompt.push_back(token());
  Group group;
  group.prompt_tokens = kPrompt;
  for (int e = 0; e < 8; ++e) {
    Episode& episode = group.episodes.emplace_back();
    episode.tokens = prompt;
    episode.sources.assign(kPrompt, TokenSource::kPrompt);
    const auto add = [&](TokenSource source, std::uint64_t count) {
      for (std::uint64_t i = 0; i < count; ++i) {
        episode.tokens.push_back(token());
        episode.sources.push_back(source);
      }
    };
    add(TokenSource::kModel, 12 + random.below(6));
    add(TokenSource::kEnvironment, 40 + random.below(20));
    add(TokenSource::kModel, 8 + random.below(5));
    episode.logprobs.assign(episode.tokens.size(), -10.8f);
    episode.reward = e % 3 == 0;
  }
  return group;
}

}  // namespace flotilla
