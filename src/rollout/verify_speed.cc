#include "rollout/verify_speed.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/median.h"
#include "rollout/group_file.h"
#include "rollout/sweep.h"

namespace flotilla {
namespace {

constexpr std::int32_t kPromptTokens = 512;  // of a plain prompt, as `flotilla bench prefill` measures them

bool of_one_version(const Group& group) {
  const Version version = group.episodes.front().spans.front().version;
  return std::ranges::all_of(group.episodes, [&](const Episode& episode) {
    return episode.spans.size() == 1 && episode.spans.front().version == version;
  });
}

// What a forward pass reads, from which sequence.
struct Passage {
  std::vector<TokenId> tokens;
  std::vector<Readout> readouts;
};

Readout readout_at(const Group& group, std::size_t episode, std::int32_t position, std::int32_t offset) {
  return {.offset = offset,
          .sampling = group.identity.sampling,
          .key = {.seed = group.identity.seed,
                  .group = sample_group(group.identity.group),
                  .episode = static_cast<std::uint32_t>(episode),
                  .position = static_cast<std::uint32_t>(position)},
          .target = group.episodes[episode].tokens[position]};
}

// All rows of a verification one after the other, cut into prompts.
std::vector<Passage> plain_prompts(std::span<const Group> groups, std::int32_t longest) {
  std::vector<Passage> prompts;
  const auto add = [&](TokenId token) -> Passage& {
    if (prompts.empty() || std::ssize(prompts.back().tokens) == longest) prompts.emplace_back();
    prompts.back().tokens.push_back(token);
    return prompts.back();
  };
  for (const Group& group : groups) {
    for (std::int32_t i = 0; i + 1 < group.prompt_tokens; ++i) add(group.episodes.front().tokens[i]);
    for (std::size_t e = 0; e < group.episodes.size(); ++e) {
      const Episode& episode = group.episodes[e];
      for (std::int32_t i = group.prompt_tokens - 1; i + 1 < std::ssize(episode.tokens); ++i) {
        Passage& prompt = add(episode.tokens[i]);
        if (episode.sources[i + 1] != TokenSource::kModel) continue;
        prompt.readouts.push_back(readout_at(group, e, i + 1, static_cast<std::int32_t>(prompt.tokens.size()) - 1));
      }
    }
  }
  return prompts;
}

class Measurement {
 public:
  Measurement(const RunAssets& assets, Engine& engine, const GroupVerifier::Weights& weights,
              std::span<const Group> groups, const Clock& clock)
      : assets_(assets), engine_(engine), verifier_(assets, engine, weights), groups_(groups), clock_(clock) {
    for (const Group& group : groups) files_.push_back(write_group(group));
    prompts_ = plain_prompts(groups, std::min(kPromptTokens, assets.description.context));
  }

  Status round(VerifySpeed& speed) {
    FLOTILLA_RETURN_IF_ERROR(timed(speed.verify, [&] { return verify(); }));
    FLOTILLA_RETURN_IF_ERROR(timed(speed.prefill, [&] { return prefill(); }));
    FLOTILLA_RETURN_IF_ERROR(timed(speed.sweep, [&] { return sweep(); }));
    return decode(speed);
  }

  VerifySpeed work() const {
    VerifySpeed speed;
    speed.groups = std::ssize(groups_);
    for (const Group& group : groups_) {
      speed.episodes += std::ssize(group.episodes);
      for (const Episode& episode : group.episodes) {
        speed.model_tokens += std::ranges::count(episode.sources, TokenSource::kModel);
      }
    }
    for (const Passage& prompt : prompts_) speed.tokens += std::ssize(prompt.tokens);
    speed.decoded = std::ssize(groups_.front().episodes.front().tokens) - groups_.front().prompt_tokens;
    return speed;
  }

 private:
  Status timed(std::vector<double>& seconds, const std::function<Status()>& what) const {
    const auto begin = clock_.monotonic();
    FLOTILLA_RETURN_IF_ERROR(what());
    seconds.push_back(std::chrono::duration<double>(clock_.monotonic() - begin).count());
    return ok_status();
  }

  Status verify() {
    std::vector<Group> groups;
    for (const Bytes& file : files_) {
      FLOTILLA_ASSIGN_OR_RETURN(groups.emplace_back(), parse_group(file));
    }
    for (const auto& result : verifier_.verify(groups)) FLOTILLA_RETURN_IF_ERROR(result.status());
    return ok_status();
  }

  Status prefill() {
    for (const Passage& prompt : prompts_) {
      FLOTILLA_ASSIGN_OR_RETURN(const SequenceId sequence, engine_.open());
      const Chunk chunk{sequence, prompt.tokens, prompt.readouts};
      const Status status = engine_.forward({&chunk, 1}).status();
      engine_.close(sequence);
      FLOTILLA_RETURN_IF_ERROR(status);
    }
    return ok_status();
  }

  Status sweep() {
    std::vector<SweepItem> items;
    for (const Group& group : groups_) {
      FLOTILLA_ASSIGN_OR_RETURN(Task task, assets_.environment->task(group.identity.split, group.identity.task));
      items.push_back({.task = std::move(task),
                       .sample_group = sample_group(group.identity.group),
                       .episodes = static_cast<std::int32_t>(group.episodes.size())});
    }
    const Group& first = groups_.front();
    const VersionSpan& span = first.episodes.front().spans.front();
    const SweepSettings settings{
        .seed = first.identity.seed, .sampling = first.identity.sampling, .version = span.version, .state = span.state};
    const auto compare = [&](const FinishedGroup& finished) -> Status {
      const std::vector<Episode>& recorded = groups_[finished.item].episodes;
      for (std::size_t e = 0; e < recorded.size(); ++e) {
        if (finished.episodes[e].tokens != recorded[e].tokens ||
            finished.episodes[e].logprobs != recorded[e].logprobs) {
          return data_loss(fmt::format("group {}, episode {}: the sweep made something else",
                                       groups_[finished.item].identity.group.value(), e));
        }
      }
      return ok_status();
    };
    return run_sweep(engine_, assets_.rules, settings, items, {.on_group = compare}).status();
  }

  Status decode(VerifySpeed& speed) {
    const Group& group = groups_.front();
    const std::vector<TokenId>& tokens = group.episodes.front().tokens;
    FLOTILLA_ASSIGN_OR_RETURN(const SequenceId sequence, engine_.open());
    const auto append = [&](std::int32_t begin, std::int32_t count, std::span<const Readout> readouts) {
      if (count == 0) return ok_status();
      const Chunk chunk{sequence, std::span(tokens).subspan(begin, count), readouts};
      return engine_.forward({&chunk, 1}).status();
    };
    Status status = append(0, group.prompt_tokens - 1, {});
    if (status.ok()) {
      status = timed(speed.decode, [&] {
        for (std::int32_t i = group.prompt_tokens - 1; i + 1 < std::ssize(tokens); ++i) {
          const Readout readout = readout_at(group, 0, i + 1, 0);
          FLOTILLA_RETURN_IF_ERROR(append(i, 1, {&readout, 1}));
        }
        return ok_status();
      });
    }
    engine_.close(sequence);
    return status;
  }

  const RunAssets& assets_;
  Engine& engine_;
  GroupVerifier verifier_;
  const std::span<const Group> groups_;
  const Clock& clock_;
  std::vector<Bytes> files_;
  std::vector<Passage> prompts_;
};

}  // namespace

Result<std::vector<Group>> groups_of_one_version(std::span<const Bytes> files, std::size_t most) {
  std::vector<Group> groups;
  for (const Bytes& file : files) {
    if (groups.size() == most) break;
    FLOTILLA_ASSIGN_OR_RETURN(Group group, parse_group(file));
    if (!of_one_version(group)) continue;
    if (!groups.empty() && group.oldest_version() != groups.front().oldest_version()) continue;
    groups.push_back(std::move(group));
  }
  if (groups.empty()) return failed_precondition("no group is of one version throughout");
  return groups;
}

Result<VerifySpeed> measure_verification(const RunAssets& assets, Engine& engine, const GroupVerifier::Weights& weights,
                                         std::span<const Group> groups, int rounds,
                                         const std::function<void(int)>& progress, const Clock& clock) {
  FLOTILLA_CHECK(!groups.empty() && rounds > 0);
  Measurement measurement(assets, engine, weights, groups, clock);
  VerifySpeed warm_up;
  FLOTILLA_RETURN_IF_ERROR(measurement.round(warm_up));
  VerifySpeed speed = measurement.work();
  for (int round = 1; round <= rounds; ++round) {
    progress(round);
    FLOTILLA_RETURN_IF_ERROR(measurement.round(speed));
  }
  return speed;
}

std::string verify_speed_text(const VerifySpeed& speed) {
  const auto rate = [](std::int64_t tokens, const std::vector<double>& seconds) {
    return static_cast<double>(tokens) / median(seconds);
  };
  const double verify = rate(speed.tokens, speed.verify);
  const double prefill = rate(speed.tokens, speed.prefill);
  const double sweep = rate(speed.tokens, speed.sweep);
  const double decode = rate(speed.decoded, speed.decode);
  return fmt::format(
      "{} groups, {} episodes, {} tokens of which {} were sampled; medians of {}, measured in turns\n"
      "verification                     {:>10.1f} tokens/s\n"
      "prefill with the same readouts   {:>10.1f} tokens/s   verification has {:.0f} % of its speed\n"
      "the sweep that made the groups   {:>10.1f} tokens/s   verification is {:.1f} times as fast\n"
      "decoding one sequence            {:>10.1f} tokens/s   verification is {:.1f} times as fast\n",
      speed.groups, speed.episodes, speed.tokens, speed.model_tokens, speed.verify.size(), verify, prefill,
      100 * verify / prefill, sweep, verify / sweep, decode, verify / decode);
}

}  // namespace flotilla
