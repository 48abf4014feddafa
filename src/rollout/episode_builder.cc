#include "rollout/episode_builder.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/hashing.h"
#include "model/chat.h"
#include "model/tokenizer_utf8.h"

namespace flotilla {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

}  // namespace

Result<EpisodeRules> make_episode_rules(const Environment& environment, const Tokenizer& tokenizer,
                                        const ModelDescription& model) {
  if (tokenizer.vocabulary() > model.vocabulary) {
    return invalid_argument(fmt::format("the tokenizer has {} ids, the model {}: they do not belong together",
                                        tokenizer.vocabulary(), model.vocabulary));
  }
  const EnvironmentLimits& limits = environment.limits();
  if (limits.model_tokens <= 0 || limits.turns <= 0 || limits.observation_tokens < 0) {
    return invalid_argument(fmt::format("environment {}: limits of {} model tokens, {} turns, {} observation tokens",
                                        environment.name(), limits.model_tokens, limits.turns,
                                        limits.observation_tokens));
  }
  EpisodeRules rules{.environment = &environment, .tokenizer = &tokenizer, .context = model.context, .stop_ids = {}};
  FLOTILLA_ASSIGN_OR_RETURN(const TokenId turn_end, end_of_turn(tokenizer));
  rules.stop_ids.push_back(turn_end);
  const TokenId eos = tokenizer.spec().eos;
  if (eos >= 0 && eos != turn_end) rules.stop_ids.push_back(eos);
  return rules;
}

Result<std::vector<TokenId>> episode_prompt(const Tokenizer& tokenizer, const Task& task) {
  const ChatMessage messages[] = {{"system", task.system}, {"user", task.question}};
  return encode_chat(tokenizer, messages, true);
}

std::vector<TokenId> encode_observation(const Tokenizer& tokenizer, std::string_view text,
                                        const EnvironmentLimits& limits) {
  std::vector<TokenId> ids = tokenizer.encode(text);
  if (ids.size() > static_cast<std::size_t>(limits.observation_tokens)) ids.resize(limits.observation_tokens);
  return ids;
}

std::vector<std::string> actions_of(const Episode& episode, const Tokenizer& tokenizer) {
  std::vector<std::string> actions;
  std::int32_t position = 0;
  for (const std::int32_t turn_end : episode.turns) {
    std::string& text = actions.emplace_back();
    for (; position < turn_end; ++position) {
      if (episode.sources[position] == TokenSource::kModel) text += tokenizer.token_bytes(episode.tokens[position]);
    }
  }
  return actions;
}

std::string episode_text(const Episode& episode, const Tokenizer& tokenizer) {
  const auto first = std::find_if(episode.sources.begin(), episode.sources.end(),
                                  [](TokenSource source) { return source != TokenSource::kPrompt; });
  const auto prompt = static_cast<std::size_t>(first - episode.sources.begin());
  const std::string bytes = tokenizer.decode(std::span(episode.tokens).subspan(prompt));
  std::string text;
  for (std::string_view rest = bytes; !rest.empty();) {
    const std::size_t valid = utf8_valid_prefix(rest);
    text += rest.substr(0, valid);
    rest.remove_prefix(valid);
    if (rest.empty()) break;
    text += kReplacement;
    rest.remove_prefix(1);
  }
  return text;
}

std::uint64_t environment_seed(std::uint64_t run_seed, std::uint64_t sample_group, std::uint32_t episode) {
  Sha256 hash;
  hash.update_framed("flotilla environment");
  hash.update_value(run_seed);
  hash.update_value(sample_group);
  hash.update_value(episode);
  const Sha256Digest digest = hash.finish();
  std::uint64_t seed = 0;
  for (int i = 0; i < 8; ++i) seed = (seed << 8) | digest.bytes[i];
  return seed;
}

EpisodeBuilder::EpisodeBuilder(const EpisodeRules& rules, const Task& task, std::uint64_t environment_seed,
                               std::span<const TokenId> prompt)
    : rules_(rules), task_(task), environment_seed_(environment_seed) {
  FLOTILLA_CHECK(!prompt.empty() && prompt.size() < static_cast<std::size_t>(rules.context));
  for (const TokenId token : prompt) append(token, TokenSource::kPrompt, 0);
}

Status EpisodeBuilder::take(TokenId token, float logprob) {
  FLOTILLA_CHECK(!ended_);
  append(token, TokenSource::kModel, logprob);
  ++model_tokens_;
  if (completes_turn(token)) return end_turn();
  if (model_tokens_ == rules_.environment->limits().model_tokens) return end(EpisodeEnd::kTokenLimit);
  if (size() == rules_.context) return end(EpisodeEnd::kContext);
  return ok_status();
}

bool EpisodeBuilder::completes_turn(TokenId token) {
  const std::size_t before = turn_text_.size();
  turn_text_ += rules_.tokenizer->token_bytes(token);
  if (std::ranges::find(rules_.stop_ids, token) != rules_.stop_ids.end()) return true;
  return std::ranges::any_of(rules_.environment->stop_strings(), [&](const std::string& stop) {
    if (stop.empty()) return false;
    const std::size_t from = before + 1 > stop.size() ? before + 1 - stop.size() : 0;
    return turn_text_.find(stop, from) != std::string::npos;
  });
}

Status EpisodeBuilder::end_turn() {
  const EnvironmentLimits& limits = rules_.environment->limits();
  actions_.push_back(std::exchange(turn_text_, {}));
  episode_.turns.push_back(size());
  FLOTILLA_ASSIGN_OR_RETURN(const Transition next, rules_.environment->step(task_, actions_, environment_seed_));
  if (next.done) return end(EpisodeEnd::kDone);
  if (std::ssize(actions_) == limits.turns) return end(EpisodeEnd::kTurnLimit);
  if (model_tokens_ == limits.model_tokens) return end(EpisodeEnd::kTokenLimit);
  const std::vector<TokenId> observation = encode_observation(*rules_.tokenizer, next.observation, limits);
  if (std::ssize(observation) + size() >= rules_.context) return end(EpisodeEnd::kContext);
  for (const TokenId token : observation) append(token, TokenSource::kEnvironment, 0);
  return ok_status();
}

Status EpisodeBuilder::end(EpisodeEnd reason) {
  // A turn that a limit cut off is an action like the others.
  if (episode_.turns.empty() || episode_.turns.back() != size()) {
    actions_.push_back(std::exchange(turn_text_, {}));
    episode_.turns.push_back(size());
  }
  FLOTILLA_ASSIGN_OR_RETURN(const Reward reward, rules_.environment->reward(task_, actions_));
  episode_.end = reason;
  episode_.reward = reward.value;
  episode_.metrics = reward.metrics;
  ended_ = true;
  return ok_status();
}

void EpisodeBuilder::append(TokenId token, TokenSource source, float logprob) {
  episode_.tokens.push_back(token);
  episode_.sources.push_back(source);
  episode_.logprobs.push_back(logprob);
}

Result<Episode> demonstration_episode(const EpisodeRules& rules, const Task& task, std::uint64_t environment_seed,
                                      std::span<const std::string> turns) {
  FLOTILLA_ASSIGN_OR_RETURN(const std::vector<TokenId> prompt, episode_prompt(*rules.tokenizer, task));
  if (std::ssize(prompt) >= rules.context) {
    return failed_precondition(fmt::format("a prompt of {} tokens, the context is {}", prompt.size(), rules.context));
  }
  EpisodeBuilder builder(rules, task, environment_seed, prompt);
  for (std::size_t turn = 0; turn < turns.size(); ++turn) {
    for (const TokenId token : rules.tokenizer->encode(turns[turn])) {
      if (builder.ended() || builder.episode().turns.size() > turn) {
        return failed_precondition(
            fmt::format("demonstration of task {}: turn {} goes on after its end", task.index, turn));
      }
      FLOTILLA_RETURN_IF_ERROR(builder.take(token, 0));
    }
    if (builder.episode().turns.size() != turn + 1) {
      return failed_precondition(fmt::format("demonstration of task {}: turn {} does not end", task.index, turn));
    }
  }
  if (!builder.ended()) {
    return failed_precondition(fmt::format("demonstration of task {} does not end its episode", task.index));
  }
  return std::move(builder).finish();
}

}  // namespace flotilla
