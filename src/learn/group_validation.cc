#include "learn/group_validation.h"

#include <algorithm>
#include <set>

#include <fmt/format.h>

#include "rollout/claim.h"
#include "rollout/episode_builder.h"

namespace flotilla {
namespace {

Status check_digest(std::string_view what, const Sha256Digest& got, const Sha256Digest& expected) {
  if (got == expected) return ok_status();
  return invalid_argument(fmt::format("{} is {}, the run's is {}", what, got.to_hex(), expected.to_hex()));
}

Status check_unit(const GroupIdentity& identity, const GroupExpectations& expected) {
  const RunSpec& run = *expected.run;
  if (identity.run != run.run) return invalid_argument(fmt::format("of run {}, this is {}", identity.run, run.run));
  if (identity.seed != run.seed)
    return invalid_argument(fmt::format("seed {}, the run's is {}", identity.seed, run.seed));
  if (identity.split != Split::kTrain) {
    return invalid_argument(fmt::format("a task of the split {}", split_name(identity.split)));
  }
  if (identity.arithmetic != run.arithmetic && identity.arithmetic != kApproximate) {
    return invalid_argument(fmt::format("arithmetic {}, the run's is {}", identity.arithmetic, run.arithmetic));
  }
  const SamplingParams& sampling = identity.sampling;
  if (sampling.temperature != run.temperature || sampling.top_k != run.top_k || sampling.top_p != run.top_p) {
    return invalid_argument(fmt::format("sampled with temperature {}, top_k {}, top_p {}; the run's are {}, {}, {}",
                                        sampling.temperature, sampling.top_k, sampling.top_p, run.temperature,
                                        run.top_k, run.top_p));
  }
  FLOTILLA_RETURN_IF_ERROR(check_digest("tokenizer", identity.tokenizer, expected.tokenizer_digest));
  FLOTILLA_RETURN_IF_ERROR(check_digest("environment", identity.environment, run.environment_digest));
  FLOTILLA_RETURN_IF_ERROR(check_digest("corpus", identity.corpus, expected.corpus));
  const std::uint64_t tasks = expected.environment->task_count(Split::kTrain);
  const std::uint64_t assigned = run_task(run, identity.worker, identity.counter, tasks);
  if (identity.task != assigned) {
    return invalid_argument(fmt::format("task {}, but {} was assigned", identity.task, assigned));
  }
  // A worker that counts attempts itself could draw again for luckier samples.
  if (identity.attempt != 0) return invalid_argument(fmt::format("attempt {}, expected 0", identity.attempt));
  return ok_status();
}

Status check_prompt(const Group& group, const GroupExpectations& expected) {
  FLOTILLA_ASSIGN_OR_RETURN(const Task task, expected.environment->task(Split::kTrain, group.identity.task));
  FLOTILLA_ASSIGN_OR_RETURN(const std::vector<TokenId> prompt, episode_prompt(*expected.tokenizer, task));
  const std::vector<TokenId>& tokens = group.episodes.front().tokens;
  if (group.prompt_tokens != std::ssize(prompt) || !std::equal(prompt.begin(), prompt.end(), tokens.begin())) {
    return invalid_argument(fmt::format("the prompt of {} tokens is not that of task {}, which has {}",
                                        group.prompt_tokens, group.identity.task, prompt.size()));
  }
  return ok_status();
}

Status check_episode(const Episode& episode, const GroupExpectations& expected) {
  const EnvironmentLimits& limits = expected.environment->limits();
  if (std::ssize(episode.tokens) > expected.context) {
    return invalid_argument(fmt::format("{} tokens, the context is {}", episode.tokens.size(), expected.context));
  }
  const auto model_tokens = std::count(episode.sources.begin(), episode.sources.end(), TokenSource::kModel);
  if (model_tokens > limits.model_tokens) {
    return invalid_argument(fmt::format("{} model tokens, the limit is {}", model_tokens, limits.model_tokens));
  }
  if (std::ssize(episode.turns) > limits.turns) {
    return invalid_argument(fmt::format("{} turns, the limit is {}", episode.turns.size(), limits.turns));
  }
  const TokenId largest = *std::max_element(episode.tokens.begin(), episode.tokens.end());
  if (largest >= expected.vocabulary) {
    return invalid_argument(fmt::format("token {} is outside the vocabulary of {}", largest, expected.vocabulary));
  }
  return ok_status();
}

Status check_versions(const Group& group, const StateOfVersion& state_of) {
  std::set<std::pair<Version, Sha256Digest>> used;
  for (const Episode& episode : group.episodes) {
    for (const VersionSpan& span : episode.spans) used.emplace(span.version, span.state);
  }
  for (const auto& [version, state] : used) {
    const Result<Sha256Digest> published = state_of(version);
    if (!published.ok() && published.status().code() == StatusCode::kNotFound) {
      return invalid_argument(fmt::format("version {} was not published", version.value()));
    }
    FLOTILLA_RETURN_IF_ERROR(published.status());
    FLOTILLA_RETURN_IF_ERROR(check_digest(fmt::format("the state of version {}", version.value()), state, *published));
  }
  return ok_status();
}

}  // namespace

Status validate_group(const Group& group, const GroupExpectations& expected, const StateOfVersion& state_of) {
  FLOTILLA_RETURN_IF_ERROR(check_unit(group.identity, expected));
  if (std::ssize(group.episodes) != expected.run->group_size) {
    return invalid_argument(
        fmt::format("{} episodes, a group has {}", group.episodes.size(), expected.run->group_size));
  }
  FLOTILLA_RETURN_IF_ERROR(check_swap(group, expected.run->swap));
  FLOTILLA_RETURN_IF_ERROR(check_prompt(group, expected));
  for (std::size_t i = 0; i < group.episodes.size(); ++i) {
    FLOTILLA_RETURN_IF_ERROR(check_episode(group.episodes[i], expected).with_context(fmt::format("episode {}", i)));
  }
  return check_versions(group, state_of);
}

}  // namespace flotilla
