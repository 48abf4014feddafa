#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "engine/engine.h"

namespace flotilla {

using RequestId = StrongId<struct RequestTag, std::uint64_t>;

// What a program asks for: so many continuations ("choices") of each of its prompts. The answer depends on this and the
// weights alone: choice c of a prompt draws its tokens with the random numbers of (seed, c, position).
struct GenerationRequest {
  std::vector<std::vector<TokenId>> prompts = {};  // none of them empty
  std::int32_t choices = 1;                        // of each prompt
  std::int32_t max_tokens = 0;                     // of each choice; 0 where only the prompts' scores are wanted
  SamplingParams sampling = {};
  std::uint64_t seed = 0;
  std::int32_t top = 0;                        // how many of the most likely tokens to report beside each token
  bool score_prompt = false;                   // report each prompt token's logprob, at temperature 1
  std::vector<std::string> stop_strings = {};  // the text ends before the first of them
  std::vector<TokenId> stop_tokens = {};       // end a choice and are no part of its text
  std::optional<std::chrono::nanoseconds> timeout = {};  // from submission to the end
};

struct ScoredToken {
  TokenId token = 0;
  std::optional<float> logprob = {};  // none: the first token of a prompt has nothing before it
  std::vector<TokenLogprob> top = {};
};

enum class FinishReason { kStop, kLength };

struct GenerationUsage {
  std::int64_t prompt_tokens = 0;
  std::int64_t completion_tokens = 0;  // sampled, those included that ended a choice
};

// Something that happened to a request. In order: for each choice its prompt's scores where asked for, then pieces of
// text, the last of which says why the choice ended; after all choices, or at any time on an error, one last event with
// `end`.
struct GenerationEvent {
  RequestId request = {};
  std::int32_t choice = 0;               // prompt * choices + index
  std::vector<ScoredToken> prompt = {};  // the whole prompt
  std::string text = {};                 // more of the choice's text: whole tokens, and whole characters where it can
  std::vector<ScoredToken> tokens = {};  // those of `text`
  std::optional<FinishReason> finish = {};
  std::optional<Status> end = {};  // ok, or why the request failed. Nothing follows.
  GenerationUsage usage = {};      // with `end`
};

}  // namespace flotilla
