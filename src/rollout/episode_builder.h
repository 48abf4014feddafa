#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "env/environment.h"
#include "model/description.h"
#include "model/tokenizer.h"
#include "rollout/group.h"

namespace flotilla {

// What decides how an episode goes on, apart from the model. Both objects outlive all that is built with them.
struct EpisodeRules {
  const Environment* environment = nullptr;
  const Tokenizer* tokenizer = nullptr;
  std::int32_t context = 0;       // positions that the model has
  std::vector<TokenId> stop_ids;  // a turn ends with one of these: end of turn, end of text
};

// invalid_argument when the tokenizer has ids that the model lacks or the environment's limits leave no room for a
// turn; not_found when the vocabulary lacks ChatML's tokens.
Result<EpisodeRules> make_episode_rules(const Environment& environment, const Tokenizer& tokenizer,
                                        const ModelDescription& model);

// The prompt of a task: ChatML with the task's system and user message and the assistant's turn opened.
Result<std::vector<TokenId>> episode_prompt(const Tokenizer& tokenizer, const Task& task);

// The ids of an observation: text only (it cannot forge special tokens), cut after limits.observation_tokens.
std::vector<TokenId> encode_observation(const Tokenizer& tokenizer, std::string_view text,
                                        const EnvironmentLimits& limits);

// What the model wrote, a string a turn, special tokens left out: what the environment sees. The turns lie within the
// tokens.
std::vector<std::string> actions_of(const Episode& episode, const Tokenizer& tokenizer);

// All text after the prompt, for people: bytes that are not UTF-8 become U+FFFD.
std::string episode_text(const Episode& episode, const Tokenizer& tokenizer);

// Environment::step's seed for one episode of a group.
std::uint64_t environment_seed(std::uint64_t run_seed, std::uint64_t sample_group, std::uint32_t episode);

// Makes an episode from the model's tokens, one by one, whoever chose them: the sampler in a sweep, a recorded file in
// a verification, a demonstration in the warm-up. A turn ends with a stop id, or when its text (the bytes of its
// tokens) contains a stop string; the token that completes it stays whole. Then the environment answers, and its
// observation is appended. The episode ends when the environment says so, and else, in this order, with the last turn,
// the last model token, or when the context has no room for the observation and one token more. The reward is asked for
// at the end. Not thread safe.
class EpisodeBuilder {
 public:
  // `rules` and `task` outlive the builder. 0 < prompt size < rules.context.
  EpisodeBuilder(const EpisodeRules& rules, const Task& task, std::uint64_t environment_seed,
                 std::span<const TokenId> prompt);

  // Appends the next token of the model. Not after the end. An error is the environment's.
  Status take(TokenId token, float logprob);

  bool ended() const { return ended_; }
  // Without spans: the caller knows who wrote what.
  const Episode& episode() const { return episode_; }
  Episode finish() && { return std::move(episode_); }
  std::int32_t size() const { return static_cast<std::int32_t>(episode_.tokens.size()); }

 private:
  bool completes_turn(TokenId token);
  Status end_turn();
  Status end(EpisodeEnd reason);
  void append(TokenId token, TokenSource source, float logprob);

  const EpisodeRules& rules_;
  const Task& task_;
  const std::uint64_t environment_seed_;
  Episode episode_;
  std::int32_t model_tokens_ = 0;
  std::string turn_text_;             // of the present turn
  std::vector<std::string> actions_;  // of the turns before it
  bool ended_ = false;
};

// The episode that a demonstration's turns make, without logprobs and spans: for the warm-up, which so sees exactly
// what the fleet will see. Each turn is encoded as text. failed_precondition when a turn's text does not end its turn,
// or an episode ends before its last turn.
Result<Episode> demonstration_episode(const EpisodeRules& rules, const Task& task, std::uint64_t environment_seed,
                                      std::span<const std::string> turns);

}  // namespace flotilla
