#include <algorithm>
#include <bit>
#include <cmath>
#include <map>

#include <fmt/format.h>

#include "rollout/group.h"
#include "store/object_store.h"

namespace flotilla {
namespace {

constexpr std::size_t kMaxEpisodes = 4096;
constexpr std::size_t kMaxTokens = std::size_t{1} << 24;  // of an episode
constexpr std::size_t kMaxMetrics = 64;
constexpr std::size_t kMaxNameBytes = 128;
constexpr std::size_t kMaxMetadataBytes = std::size_t{64} << 10;
constexpr float kMaxTemperature = 100;

// Names become parts of hub keys.
Status check_name(std::string_view field, std::string_view name) {
  if (name.size() > kMaxNameBytes || name.find('/') != std::string_view::npos || !check_key(name).ok()) {
    return data_loss(fmt::format("{} is no name of at most {} of [A-Za-z0-9._-]", field, kMaxNameBytes));
  }
  return ok_status();
}

Status check_sampling(const SamplingParams& sampling) {
  if (!(sampling.temperature >= 0 && sampling.temperature <= kMaxTemperature)) {
    return data_loss(fmt::format("temperature {} is outside [0, {}]", sampling.temperature, kMaxTemperature));
  }
  if (sampling.top_k < 0) return data_loss(fmt::format("top_k {} is negative", sampling.top_k));
  if (!(sampling.top_p > 0 && sampling.top_p <= 1)) {
    return data_loss(fmt::format("top_p {} is outside (0, 1]", sampling.top_p));
  }
  return ok_status();
}

Status check_identity(const GroupIdentity& identity) {
  const auto slash = identity.run.find('/');
  if (slash == std::string::npos) return data_loss("run is not OWNER/RUN");
  FLOTILLA_RETURN_IF_ERROR(check_name("owner", identity.run.substr(0, slash)));
  FLOTILLA_RETURN_IF_ERROR(check_name("run", identity.run.substr(slash + 1)));
  FLOTILLA_RETURN_IF_ERROR(check_name("operator", identity.operator_id.value()));
  FLOTILLA_RETURN_IF_ERROR(check_name("worker", identity.worker.value()));
  FLOTILLA_RETURN_IF_ERROR(check_name("backend", identity.backend));
  if (identity.arithmetic < 0) return data_loss(fmt::format("arithmetic {} is negative", identity.arithmetic));
  if (identity.task_metadata.size() > kMaxMetadataBytes) {
    return data_loss(
        fmt::format("task metadata of {} bytes, at most {}", identity.task_metadata.size(), kMaxMetadataBytes));
  }
  FLOTILLA_RETURN_IF_ERROR(check_sampling(identity.sampling));
  const GroupId expected = group_id(identity);
  if (identity.group != expected) {
    return data_loss(
        fmt::format("group id is \"{}\", the assignment gives {}", identity.group.value(), expected.value()));
  }
  return ok_status();
}

Status check_numbers(const Episode& episode) {
  for (std::size_t i = 0; i < episode.tokens.size(); ++i) {
    const float logprob = episode.logprobs[i];
    if (episode.tokens[i] < 0) return data_loss(fmt::format("token {} at {} is negative", episode.tokens[i], i));
    if (episode.sources[i] == TokenSource::kModel) {
      if (!(std::isfinite(logprob) && logprob <= kLogprobSlack)) {
        return data_loss(fmt::format("logprob {} at {} is not finite and at most 0", logprob, i));
      }
    } else if (std::bit_cast<std::uint32_t>(logprob) != 0) {
      return data_loss(fmt::format("logprob {} at {}, where the model wrote nothing", logprob, i));
    }
  }
  if (!std::isfinite(episode.reward)) return data_loss("reward is not finite");
  if (episode.metrics.size() > kMaxMetrics) {
    return data_loss(fmt::format("{} metrics, at most {}", episode.metrics.size(), kMaxMetrics));
  }
  for (const auto& [name, value] : episode.metrics) {
    FLOTILLA_RETURN_IF_ERROR(check_name("metric", name));
    if (!std::isfinite(value)) return data_loss(fmt::format("metric {} is not finite", name));
  }
  return ok_status();
}

// Prompt tokens, then turn after turn: model tokens up to the turn's end, then the tokens of an observation.
Status check_turns(const Episode& episode, std::int32_t prompt_tokens) {
  const auto size = static_cast<std::int32_t>(episode.tokens.size());
  std::int32_t position = 0;
  const auto run_of = [&](TokenSource source, std::int32_t end) {
    while (position < end && episode.sources[position] == source) ++position;
  };
  run_of(TokenSource::kPrompt, prompt_tokens);
  if (position != prompt_tokens)
    return data_loss(fmt::format("token {} belongs to the prompt, by its place", position));
  for (std::size_t turn = 0; turn < episode.turns.size(); ++turn) {
    const std::int32_t end = episode.turns[turn];
    if (end <= position || end > size) {
      return data_loss(fmt::format("turn {} ends at {}, outside ({}, {}]", turn, end, position, size));
    }
    if (turn > 0) run_of(TokenSource::kEnvironment, end);
    const std::int32_t begin = position;
    run_of(TokenSource::kModel, end);
    if (position != end || begin == end) {
      return data_loss(fmt::format("turn {} ends at {}, but token {} has another source", turn, end, position));
    }
  }
  if (episode.turns.empty()) return data_loss("no turn");
  if (position != size) return data_loss(fmt::format("{} tokens after the last turn", size - position));
  return ok_status();
}

// A kept context that is computed anew with the same version differs from it; a new one does not.
bool follows(const VersionSpan& before, const VersionSpan& span) {
  return span.version > before.version ||
         (span.version == before.version && span.context == SpanContext::kNew && before.context == SpanContext::kKept);
}

Status check_spans(const Episode& episode, std::int32_t prompt_tokens, std::map<Version, Sha256Digest>& states) {
  std::int32_t position = prompt_tokens;
  for (std::size_t i = 0; i < episode.spans.size(); ++i) {
    const VersionSpan& span = episode.spans[i];
    if (span.begin != position || span.end <= span.begin) {
      return data_loss(fmt::format("span {} is [{}, {}), it has to begin at {}", i, span.begin, span.end, position));
    }
    const bool anew = span.context == SpanContext::kNew;
    if (i == 0 ? !anew : !follows(episode.spans[i - 1], span)) {
      return data_loss(i == 0 ? std::string("span 0 keeps a context that no span before it has made")
                              : fmt::format("span {} has version {} in a {} context after {} in a {} one", i,
                                            span.version.value(), span_context_name(span.context),
                                            episode.spans[i - 1].version.value(),
                                            span_context_name(episode.spans[i - 1].context)));
    }
    if (anew && static_cast<std::size_t>(span.begin) < episode.sources.size() &&
        episode.sources[span.begin] != TokenSource::kModel) {
      return data_loss(fmt::format("span {} begins a new context at {}, which is no model token", i, span.begin));
    }
    const auto [known, inserted] = states.emplace(span.version, span.state);
    if (!inserted && known->second != span.state) {
      return data_loss(fmt::format("version {} has two state digests", span.version.value()));
    }
    position = span.end;
  }
  if (static_cast<std::size_t>(position) != episode.tokens.size()) {
    return data_loss(fmt::format("spans end at {} of {} tokens", position, episode.tokens.size()));
  }
  return ok_status();
}

Status check_episode(const Episode& episode, std::int32_t prompt_tokens, std::map<Version, Sha256Digest>& states) {
  const std::size_t size = episode.tokens.size();
  if (size > kMaxTokens) return data_loss(fmt::format("{} tokens, at most {}", size, kMaxTokens));
  if (size <= static_cast<std::size_t>(prompt_tokens)) {
    return data_loss(fmt::format("{} tokens, of which the prompt is {}", size, prompt_tokens));
  }
  if (episode.sources.size() != size || episode.logprobs.size() != size) {
    return data_loss(
        fmt::format("{} tokens, {} sources, {} logprobs", size, episode.sources.size(), episode.logprobs.size()));
  }
  FLOTILLA_RETURN_IF_ERROR(check_turns(episode, prompt_tokens));
  FLOTILLA_RETURN_IF_ERROR(check_spans(episode, prompt_tokens, states));
  return check_numbers(episode);
}

}  // namespace

Status check_group(const Group& group) {
  FLOTILLA_RETURN_IF_ERROR(check_identity(group.identity));
  if (group.episodes.empty() || group.episodes.size() > kMaxEpisodes) {
    return data_loss(fmt::format("{} episodes, expected 1 to {}", group.episodes.size(), kMaxEpisodes));
  }
  if (group.prompt_tokens <= 0) return data_loss(fmt::format("a prompt of {} tokens", group.prompt_tokens));
  std::map<Version, Sha256Digest> states;
  for (std::size_t i = 0; i < group.episodes.size(); ++i) {
    const Episode& episode = group.episodes[i];
    const auto context = [&] { return fmt::format("episode {}", i); };
    if (Status status = check_episode(episode, group.prompt_tokens, states); !status.ok()) {
      return std::move(status).with_context(context());
    }
    const auto& first = group.episodes.front().tokens;
    if (!std::equal(first.begin(), first.begin() + group.prompt_tokens, episode.tokens.begin())) {
      return data_loss("a prompt of its own").with_context(context());
    }
  }
  return ok_status();
}

Status check_swap(const Group& group, WeightSwap swap) {
  const Version first = group.episodes.front().spans.front().version;
  for (std::size_t i = 0; i < group.episodes.size(); ++i) {
    for (const VersionSpan& span : group.episodes[i].spans) {
      if (swap == WeightSwap::kDrain && span.version != first) {
        return invalid_argument(fmt::format("episode {}: version {} after {}, a group of this run is of one version", i,
                                            span.version.value(), first.value()));
      }
      if (swap != WeightSwap::kKeep && span.context == SpanContext::kKept) {
        return invalid_argument(
            fmt::format("episode {}, position {}: kept keys and values, this run computes them again", i, span.begin));
      }
    }
  }
  return ok_status();
}

}  // namespace flotilla
