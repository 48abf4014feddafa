#include "rollout/verify.h"

#include <algorithm>
#include <set>

#include <fmt/format.h>

#include "rollout/claim.h"
#include "rollout/span_replay.h"

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

VerifyReport report_of(const Group& group) {
  VerifyReport report{.episodes = std::ssize(group.episodes), .prompt_tokens = group.prompt_tokens};
  std::set<Version> versions;
  for (const Episode& episode : group.episodes) {
    for (const VersionSpan& span : episode.spans) versions.insert(span.version);
    report.model_tokens += std::ranges::count(episode.sources, TokenSource::kModel);
    report.environment_tokens += std::ranges::count(episode.sources, TokenSource::kEnvironment);
  }
  report.versions = std::ssize(versions);
  return report;
}

}  // namespace

Result<VerifyReport> GroupVerifier::verify(const Group& group) { return std::move(verify({&group, 1}).front()); }

std::vector<Result<VerifyReport>> GroupVerifier::verify(std::span<const Group> groups) {
  std::vector<ReplayedGroup> replayed;
  for (const Group& group : groups) replayed.push_back({.group = &group, .status = check_without_weights(group)});
  const auto load = [this](Version version) { return this->load(version); };
  replay_spans(engine_, load, replayed);
  std::vector<Result<VerifyReport>> results;
  for (ReplayedGroup& one : replayed) {
    // What stopped the call need not be this group's doing.
    if (std::exchange(one.shared, false)) {
      one.status = ok_status();
      replay_spans(engine_, load, {&one, 1});
    }
    if (one.status.ok()) {
      results.emplace_back(report_of(*one.group));
    } else {
      results.emplace_back(std::move(one.status));
    }
  }
  return results;
}

Status GroupVerifier::check_without_weights(const Group& group) const {
  if (const Status whole = check_group(group); !whole.ok()) return invalid_argument(whole.message());
  FLOTILLA_RETURN_IF_ERROR(check_unit(group));
  FLOTILLA_RETURN_IF_ERROR(check_swap(group, assets_.spec.swap));
  FLOTILLA_ASSIGN_OR_RETURN(const Task task, check_task(group));
  return replay_rules(group, task);
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
      expect_equal("task", identity.task, run_task(assets_.spec, identity.worker, identity.counter, tasks)));
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

Result<Sha256Digest> GroupVerifier::load(Version version) {
  if (loaded_ && loaded_->first == version) return loaded_->second;
  const auto failed = [&](const Status& status) {
    const std::string text = fmt::format("version {}: {}", version.value(), status.message());
    // An error that would read as a refusal of the group.
    if (status.code() == StatusCode::kInvalidArgument) return internal_error(text);
    return Status(status.code(), text);
  };
  auto pulled = weights_(version);
  if (!pulled.ok()) return failed(pulled.status());
  loaded_.reset();
  if (const Status status = engine_.load(*pulled->state, OpenSequences::kKeep); !status.ok()) return failed(status);
  loaded_ = {version, pulled->state_digest};
  return pulled->state_digest;
}

}  // namespace flotilla
