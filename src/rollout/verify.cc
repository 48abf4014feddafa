#include "rollout/verify.h"

#include <algorithm>
#include <bit>
#include <map>

#include <fmt/format.h>

namespace flotilla {
namespace {

constexpr std::string_view kSourceNames[] = {"prompt", "model", "environment"};

template <typename T>
Status expect_equal(std::string_view what, const T& recorded, const T& replayed) {
  if (recorded == replayed) return ok_status();
  return invalid_argument(fmt::format("{} is {}, the replay gives {}", what, recorded, replayed));
}

Status expect_equal(std::string_view what, const Sha256Digest& recorded, const Sha256Digest& replayed) {
  return expect_equal(what, recorded.to_hex(), replayed.to_hex());
}

std::string_view end_text(EpisodeEnd end) {
  switch (end) {
    case EpisodeEnd::kDone: return "the environment";
    case EpisodeEnd::kTurnLimit: return "the turn limit";
    case EpisodeEnd::kTokenLimit: return "the token limit";
    case EpisodeEnd::kContext: return "the context";
  }
  return "unknown";
}

// Tokens from `begin` on that the builder has and the recording should have.
Status compare_tokens(const Episode& recorded, const Episode& replayed, std::size_t begin) {
  for (std::size_t i = begin; i < replayed.tokens.size(); ++i) {
    if (i == recorded.tokens.size()) {
      return invalid_argument(fmt::format("position {}: the recording ends, the replay goes on with {} (environment)",
                                          i, replayed.tokens[i]));
    }
    if (recorded.tokens[i] != replayed.tokens[i] || recorded.sources[i] != replayed.sources[i]) {
      return invalid_argument(fmt::format("position {}: recorded is token {} ({}), the replay gives {} ({})", i,
                                          recorded.tokens[i], kSourceNames[static_cast<int>(recorded.sources[i])],
                                          replayed.tokens[i], kSourceNames[static_cast<int>(replayed.sources[i])]));
    }
  }
  return ok_status();
}

Status compare_outcome(const Episode& recorded, const Episode& replayed) {
  FLOTILLA_RETURN_IF_ERROR(expect_equal("the number of turns", recorded.turns.size(), replayed.turns.size()));
  for (std::size_t i = 0; i < recorded.turns.size(); ++i) {
    FLOTILLA_RETURN_IF_ERROR(expect_equal(fmt::format("the end of turn {}", i), recorded.turns[i], replayed.turns[i]));
  }
  FLOTILLA_RETURN_IF_ERROR(expect_equal("what ended it", end_text(recorded.end), end_text(replayed.end)));
  FLOTILLA_RETURN_IF_ERROR(expect_equal("reward", recorded.reward, replayed.reward));
  FLOTILLA_RETURN_IF_ERROR(expect_equal("the number of metrics", recorded.metrics.size(), replayed.metrics.size()));
  for (const auto& [name, value] : replayed.metrics) {
    const auto found = recorded.metrics.find(name);
    if (found == recorded.metrics.end()) return invalid_argument(fmt::format("metric {} is missing", name));
    FLOTILLA_RETURN_IF_ERROR(expect_equal(fmt::format("metric {}", name), found->second, value));
  }
  return ok_status();
}

Status replay_episode(const Episode& recorded, std::int32_t prompt_tokens, EpisodeBuilder builder) {
  std::size_t position = static_cast<std::size_t>(prompt_tokens);
  while (position < recorded.tokens.size()) {
    if (builder.ended()) {
      return invalid_argument(fmt::format("position {}: recorded goes on, the replay ended by {}", position,
                                          end_text(builder.episode().end)));
    }
    if (recorded.sources[position] != TokenSource::kModel) {
      return invalid_argument(
          fmt::format("position {}: recorded is an environment token, the replay waits for the model", position));
    }
    FLOTILLA_RETURN_IF_ERROR(builder.take(recorded.tokens[position], recorded.logprobs[position]));
    FLOTILLA_RETURN_IF_ERROR(compare_tokens(recorded, builder.episode(), position));
    position = builder.episode().tokens.size();
  }
  if (!builder.ended()) return invalid_argument(fmt::format("position {}: the recording ends too early", position));
  return compare_outcome(recorded, builder.episode());
}

// Closes a sequence at the end of the scope.
class SequenceGuard {
 public:
  SequenceGuard(Engine& engine, SequenceId id) : engine_(engine), id_(id) {}
  ~SequenceGuard() { engine_.close(id_); }
  SequenceGuard(const SequenceGuard&) = delete;
  SequenceGuard& operator=(const SequenceGuard&) = delete;
  SequenceId id() const { return id_; }

 private:
  Engine& engine_;
  const SequenceId id_;
};

}  // namespace

Result<VerifyReport> GroupVerifier::verify(const Group& group) {
  if (const Status whole = check_group(group); !whole.ok()) return invalid_argument(whole.message());
  FLOTILLA_RETURN_IF_ERROR(check_unit(group));
  FLOTILLA_ASSIGN_OR_RETURN(const Task task, check_task(group));
  FLOTILLA_RETURN_IF_ERROR(replay_rules(group, task));
  VerifyReport report;
  report.episodes = std::ssize(group.episodes);
  std::map<Version, Sha256Digest> versions;
  for (const Episode& episode : group.episodes) {
    for (const VersionSpan& span : episode.spans) versions.emplace(span.version, span.state);
    report.model_tokens += std::ranges::count(episode.sources, TokenSource::kModel);
    report.environment_tokens += std::ranges::count(episode.sources, TokenSource::kEnvironment);
  }
  for (const auto& [version, state] : versions) {
    FLOTILLA_RETURN_IF_ERROR(load(version, state));
    FLOTILLA_RETURN_IF_ERROR(replay_version(group, version));
  }
  report.versions = std::ssize(versions);
  return report;
}

Status GroupVerifier::check_unit(const Group& group) const {
  const GroupIdentity& identity = group.identity;
  const RunSpec& spec = assets_.spec;
  if (identity.arithmetic == kApproximate) {
    return failed_precondition(
        fmt::format("made by the approximate backend {}: there is no exact replay", identity.backend));
  }
  FLOTILLA_RETURN_IF_ERROR(expect_equal("run", identity.run, spec.run));
  FLOTILLA_RETURN_IF_ERROR(expect_equal("seed", identity.seed, spec.seed));
  FLOTILLA_RETURN_IF_ERROR(expect_equal("arithmetic", identity.arithmetic, spec.arithmetic));
  FLOTILLA_RETURN_IF_ERROR(expect_equal("tokenizer", identity.tokenizer, assets_.tokenizer->digest()));
  FLOTILLA_RETURN_IF_ERROR(expect_equal("environment", identity.environment, assets_.environment->digest()));
  FLOTILLA_RETURN_IF_ERROR(expect_equal("corpus", identity.corpus, spec.environment));
  FLOTILLA_RETURN_IF_ERROR(expect_equal("temperature", identity.sampling.temperature, spec.temperature));
  FLOTILLA_RETURN_IF_ERROR(expect_equal("top_k", identity.sampling.top_k, spec.top_k));
  FLOTILLA_RETURN_IF_ERROR(expect_equal("top_p", identity.sampling.top_p, spec.top_p));
  return expect_equal("the number of episodes", std::ssize(group.episodes),
                      static_cast<std::ptrdiff_t>(spec.group_size));
}

Result<Task> GroupVerifier::check_task(const Group& group) const {
  const GroupIdentity& identity = group.identity;
  FLOTILLA_RETURN_IF_ERROR(expect_equal("split", split_name(identity.split), split_name(Split::kTrain)));
  // Nothing assigns a second attempt, and a worker that chose its own would draw again for a luckier one.
  FLOTILLA_RETURN_IF_ERROR(expect_equal("attempt", identity.attempt, std::uint32_t{0}));
  const std::uint64_t tasks = assets_.environment->task_count(Split::kTrain);
  FLOTILLA_RETURN_IF_ERROR(
      expect_equal("task", identity.task, assigned_task(identity.seed, identity.worker, identity.counter, tasks)));
  FLOTILLA_ASSIGN_OR_RETURN(Task task, assets_.environment->task(Split::kTrain, identity.task));
  FLOTILLA_ASSIGN_OR_RETURN(const std::vector<TokenId> prompt, episode_prompt(*assets_.tokenizer, task));
  FLOTILLA_RETURN_IF_ERROR(
      expect_equal("the prompt's length", std::ptrdiff_t{group.prompt_tokens}, std::ssize(prompt)));
  for (std::size_t i = 0; i < prompt.size(); ++i) {
    FLOTILLA_RETURN_IF_ERROR(
        expect_equal(fmt::format("token {} of the prompt", i), group.episodes.front().tokens[i], prompt[i]));
  }
  if (std::ssize(prompt) >= assets_.rules.context) return invalid_argument("the prompt fills the context");
  return task;
}

Status GroupVerifier::replay_rules(const Group& group, const Task& task) const {
  const std::uint64_t key = sample_group(group.identity.group);
  for (std::size_t e = 0; e < group.episodes.size(); ++e) {
    const Episode& recorded = group.episodes[e];
    const auto prompt = std::span(recorded.tokens).first(static_cast<std::size_t>(group.prompt_tokens));
    const auto seed = environment_seed(group.identity.seed, key, static_cast<std::uint32_t>(e));
    if (Status status = replay_episode(recorded, group.prompt_tokens, {assets_.rules, task, seed, prompt});
        !status.ok()) {
      return std::move(status).with_context(fmt::format("episode {}", e));
    }
    const TokenId largest = *std::ranges::max_element(recorded.tokens);
    if (largest >= assets_.description.vocabulary) {
      return invalid_argument(fmt::format("episode {}: token {} is outside the vocabulary of {}", e, largest,
                                          assets_.description.vocabulary));
    }
  }
  return ok_status();
}

Status GroupVerifier::load(Version version, const Sha256Digest& recorded) {
  if (loaded_ == recorded) return ok_status();
  auto pulled = weights_(version);
  if (!pulled.ok()) {
    const Status& status = pulled.status();
    const std::string text = fmt::format("version {}: {}", version.value(), status.message());
    // An error that would read as a refusal of the group.
    if (status.code() == StatusCode::kInvalidArgument) return internal_error(text);
    return Status(status.code(), text);
  }
  FLOTILLA_RETURN_IF_ERROR(
      expect_equal(fmt::format("the state digest of version {}", version.value()), recorded, pulled->state_digest));
  loaded_.reset();
  FLOTILLA_RETURN_IF_ERROR(engine_.load(*pulled->state));
  loaded_ = recorded;
  return ok_status();
}

Status GroupVerifier::replay_version(const Group& group, Version version) {
  const std::int32_t shared = group.prompt_tokens - 1;  // the prompt's last token is fed with each episode
  FLOTILLA_ASSIGN_OR_RETURN(const SequenceId prompt_id, engine_.open());
  const SequenceGuard prompt(engine_, prompt_id);
  if (shared > 0) {
    const Chunk chunk{prompt.id(), std::span(group.episodes.front().tokens).first(shared), {}};
    FLOTILLA_RETURN_IF_ERROR(engine_.forward({&chunk, 1}).status());
  }
  for (std::size_t e = 0; e < group.episodes.size(); ++e) {
    const Episode& episode = group.episodes[e];
    const auto span = std::ranges::find(episode.spans, version, &VersionSpan::version);
    if (span == episode.spans.end()) continue;
    std::vector<Readout> readouts;
    for (std::int32_t position = span->begin; position < span->end; ++position) {
      if (episode.sources[position] != TokenSource::kModel) continue;
      readouts.push_back({.offset = position - 1 - shared,
                          .sampling = group.identity.sampling,
                          .key = {.seed = group.identity.seed,
                                  .group = sample_group(group.identity.group),
                                  .episode = static_cast<std::uint32_t>(e),
                                  .position = static_cast<std::uint32_t>(position)},
                          .target = episode.tokens[position]});
    }
    FLOTILLA_ASSIGN_OR_RETURN(const SequenceId id, engine_.fork(prompt.id()));
    const SequenceGuard sequence(engine_, id);
    const Chunk chunk{sequence.id(), std::span(episode.tokens).subspan(shared, span->end - 1 - shared), readouts};
    FLOTILLA_ASSIGN_OR_RETURN(const std::vector<ReadoutResult> results, engine_.forward({&chunk, 1}));
    for (std::size_t i = 0; i < results.size(); ++i) {
      const std::int32_t position = readouts[i].offset + 1 + shared;
      const TokenId token = episode.tokens[position];
      const float logprob = episode.logprobs[position];
      if (results[i].token != token) {
        return invalid_argument(fmt::format(
            "episode {}, position {}: recorded is token {}, version {} samples {} (the recorded one has the "
            "logprob {})",
            e, position, token, version.value(), results[i].token, results[i].target_logprob));
      }
      if (std::bit_cast<std::uint32_t>(results[i].logprob) != std::bit_cast<std::uint32_t>(logprob)) {
        return invalid_argument(
            fmt::format("episode {}, position {}: recorded is the logprob {} ({:08x}), version {} gives {} ({:08x})", e,
                        position, logprob, std::bit_cast<std::uint32_t>(logprob), version.value(), results[i].logprob,
                        std::bit_cast<std::uint32_t>(results[i].logprob)));
      }
    }
  }
  return ok_status();
}

}  // namespace flotilla
