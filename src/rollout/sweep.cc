#include "rollout/sweep.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <optional>

#include <fmt/format.h>

#include "rollout/row_share.h"

namespace flotilla {
namespace {

std::int64_t blocks_of(std::int64_t tokens) { return (tokens + kBlockTokens - 1) / kBlockTokens; }

// The most tokens that an episode can have.
std::int64_t longest_episode(const EpisodeRules& rules, std::int32_t prompt_tokens) {
  const EnvironmentLimits& limits = rules.environment->limits();
  const std::int64_t tokens =
      prompt_tokens + std::int64_t{limits.model_tokens} + std::int64_t{limits.turns - 1} * limits.observation_tokens;
  return std::min<std::int64_t>(tokens, rules.context);
}

// Tokens on their way into one sequence of the engine: the trunk, a prompt without its last token, or an episode.
struct Stream {
  const std::vector<TokenId>* tokens = nullptr;
  std::int32_t size = 0;  // how many of them are to be appended
  std::optional<SequenceId> sequence;
};

struct EpisodeInFlight {
  EpisodeBuilder builder;
  Stream stream;
};

struct GroupInFlight {
  std::vector<TokenId> prompt;
  Stream prompt_stream;
  std::vector<std::unique_ptr<EpisodeInFlight>> episodes;
  std::int64_t unfinished = 0;
  bool resident() const {
    return std::ranges::any_of(episodes, [](const auto& episode) { return episode->stream.sequence.has_value(); });
  }
};

class Sweep {
 public:
  Sweep(Engine& engine, const EpisodeRules& rules, const SweepSettings& settings, std::span<const SweepItem> items)
      : engine_(engine), rules_(rules), settings_(settings), items_(items), groups_(items.size()) {}
  ~Sweep() {
    for (GroupInFlight& group : groups_) {
      for (auto& episode : group.episodes) close(episode->stream);
      close(group.prompt_stream);
    }
    close(trunk_);
  }
  Sweep(const Sweep&) = delete;
  Sweep& operator=(const Sweep&) = delete;

  Result<SweepReport> run(const std::function<Status(FinishedGroup)>& on_group, const std::stop_token& stop) {
    FLOTILLA_RETURN_IF_ERROR(prepare());
    while (report_.groups < std::ssize(groups_)) {
      if (settings_.between_calls) keep_in_flight(settings_.between_calls());
      if (stop.stop_requested()) return cancelled("sweep: asked to stop");
      FLOTILLA_RETURN_IF_ERROR(admit());
      FLOTILLA_RETURN_IF_ERROR(step(on_group));
    }
    return report_;
  }

 private:
  Status prepare() {
    for (std::size_t i = 0; i < items_.size(); ++i) {
      const SweepItem& item = items_[i];
      GroupInFlight& group = groups_[i];
      FLOTILLA_ASSIGN_OR_RETURN(group.prompt, episode_prompt(*rules_.tokenizer, item.task));
      if (std::ssize(group.prompt) >= rules_.context) {
        return invalid_argument(fmt::format("task {}: a prompt of {} tokens, the model's context is {}",
                                            item.task.index, group.prompt.size(), rules_.context));
      }
      if (item.episodes < 1) return invalid_argument(fmt::format("a group of {} episodes", item.episodes));
      group.prompt_stream.tokens = &group.prompt;
      group.prompt_stream.size = static_cast<std::int32_t>(group.prompt.size()) - 1;
      for (std::int32_t e = 0; e < item.episodes; ++e) {
        const auto seed = environment_seed(settings_.seed, item.sample_group, static_cast<std::uint32_t>(e));
        group.episodes.push_back(
            std::make_unique<EpisodeInFlight>(EpisodeInFlight{{rules_, item.task, seed, group.prompt}, {}}));
        EpisodeInFlight& episode = *group.episodes.back();
        episode.stream.tokens = &episode.builder.episode().tokens;
        episode.stream.size = episode.builder.size();
      }
      group.unfinished = item.episodes;
    }
    if (groups_.size() > 1 && settings_.share_prefixes) find_trunk();
    report_.prompt_tokens = trunk_.size;
    for (const GroupInFlight& group : groups_) {
      const std::int64_t copies = settings_.share_prefixes ? 1 : group.unfinished;
      report_.prompt_tokens += copies * (std::ssize(group.prompt) - trunk_.size);
    }
    return ok_status();
  }

  // Closes the last groups when more than `most` are to be finished.
  void keep_in_flight(std::int64_t most) {
    most_in_flight_ = std::max<std::int64_t>(1, most);
    std::int64_t unfinished = 0;
    for (GroupInFlight& group : groups_) {
      if (group.unfinished == 0 || ++unfinished <= most_in_flight_) continue;
      for (auto& episode : group.episodes) report_.evictions += close(episode->stream);
      close(group.prompt_stream);
    }
  }

  void find_trunk() {
    trunk_.tokens = &groups_.front().prompt;
    trunk_.size = groups_.front().prompt_stream.size;
    for (const GroupInFlight& group : groups_) {
      const auto end = group.prompt.begin() + std::min(trunk_.size, group.prompt_stream.size);
      const auto differs = std::mismatch(group.prompt.begin(), end, trunk_.tokens->begin()).first;
      trunk_.size = static_cast<std::int32_t>(differs - group.prompt.begin());
    }
    // Whole blocks are shared without a copy, so that the trunk takes no block that its groups would not take.
    trunk_.size -= trunk_.size % kBlockTokens;
  }

  std::int32_t waiting(const Stream& stream) const {
    return stream.sequence ? stream.size - engine_.length(*stream.sequence) : 0;
  }

  struct Active {
    Stream* stream;
    std::int32_t waiting;  // tokens to append
    std::size_t item;
    std::optional<std::size_t> episode;  // none: the prompt or the trunk
  };

  // Streams with tokens to append, in order of group and episode.
  std::vector<Active> active() {
    std::vector<Active> streams;
    const auto add = [&](Stream& stream, std::size_t item, std::optional<std::size_t> episode) {
      if (const std::int32_t tokens = waiting(stream); tokens > 0) streams.push_back({&stream, tokens, item, episode});
    };
    add(trunk_, 0, std::nullopt);
    for (std::size_t item = 0; item < groups_.size(); ++item) {
      add(groups_[item].prompt_stream, item, std::nullopt);
      for (std::size_t e = 0; e < groups_[item].episodes.size(); ++e) add(groups_[item].episodes[e]->stream, item, e);
    }
    return streams;
  }

  // Opens what fits into the KV pool beside what is there already and one block more for each of those.
  Status admit() {
    const std::vector<Active> streams = active();
    std::int64_t running = std::ssize(streams);
    const EngineUsage usage = engine_.usage();
    std::int64_t free = usage.blocks_total - usage.blocks_used;
    for (const Active& a : streams) free -= engine_.blocks_needed(*a.stream->sequence, a.waiting);
    const auto fits = [&](std::int64_t blocks) {
      if (running > 0 && blocks + running > free) return false;
      free -= blocks;
      ++running;
      return true;
    };
    if (trunk_.size > 0 && !trunk_.sequence) {
      if (!fits(blocks_of(trunk_.size))) return ok_status();
      FLOTILLA_ASSIGN_OR_RETURN(trunk_.sequence, engine_.open());
    }
    if (waiting(trunk_) > 0) return ok_status();
    std::int64_t unfinished = 0;
    for (GroupInFlight& group : groups_) {
      if (group.unfinished == 0) continue;
      if (++unfinished > most_in_flight_) return ok_status();
      if (settings_.share_prefixes && !group.prompt_stream.sequence) {
        const std::int64_t shared = trunk_.size / kBlockTokens;
        if (!fits(blocks_of(group.prompt_stream.size) + 1 - shared)) return ok_status();
        FLOTILLA_ASSIGN_OR_RETURN(group.prompt_stream.sequence,
                                  trunk_.sequence ? engine_.fork(*trunk_.sequence) : engine_.open());
      }
      if (waiting(group.prompt_stream) > 0) continue;
      for (auto& episode : group.episodes) {
        if (episode->stream.sequence || episode->builder.ended()) continue;
        // The prompt's last block is shared until the episode writes into it.
        const std::int64_t shared = settings_.share_prefixes ? group.prompt_stream.size / kBlockTokens : 0;
        if (!fits(blocks_of(episode->stream.size) - shared)) return ok_status();
        FLOTILLA_ASSIGN_OR_RETURN(episode->stream.sequence, settings_.share_prefixes
                                                                ? engine_.fork(*group.prompt_stream.sequence)
                                                                : engine_.open());
      }
    }
    return ok_status();
  }

  // One forward call, or an eviction when it finds too few blocks.
  Status step(const std::function<Status(FinishedGroup)>& on_group) {
    const std::vector<Active> streams = active();
    if (streams.empty()) return ok_status();  // prompts are there, their episodes come with the next admit()
    std::vector<std::int32_t> waiting_tokens;
    for (const Active& a : streams) waiting_tokens.push_back(a.waiting);
    const RowShare share = share_rows(waiting_tokens, settings_.rows_per_call, first_stream_);

    std::vector<Readout> readouts(streams.size());
    std::vector<Chunk> chunks;
    std::vector<const Active*> readers;
    for (std::size_t i = 0; i < streams.size(); ++i) {
      const Active& a = streams[i];
      const std::int32_t rows = share.rows[i];
      if (rows == 0) continue;
      const std::int32_t begin = engine_.length(*a.stream->sequence);
      const bool reads = a.episode && rows == a.waiting;
      if (reads) {
        readouts[i] = {.offset = rows - 1,
                       .sampling = settings_.sampling,
                       .key = {.seed = settings_.seed,
                               .group = items_[a.item].sample_group,
                               .episode = static_cast<std::uint32_t>(*a.episode),
                               .position = static_cast<std::uint32_t>(begin + rows)},
                       .target = std::nullopt};
        readers.push_back(&a);
      }
      chunks.push_back({*a.stream->sequence, std::span(*a.stream->tokens).subspan(begin, rows),
                        std::span(readouts).subspan(i, reads ? 1 : 0)});
    }
    auto results = engine_.forward(chunks);
    if (results.status().code() == StatusCode::kResourceExhausted && evict(streams)) return ok_status();
    if (!results.ok()) return std::move(results).status();
    ++report_.calls;
    first_stream_ = share.next;
    for (std::size_t i = 0; i < readers.size(); ++i) {
      FLOTILLA_RETURN_IF_ERROR(take(readers[i]->item, *readers[i]->episode, (*results)[i], on_group));
    }
    return ok_status();
  }

  Status take(std::size_t item, std::size_t index, const ReadoutResult& result,
              const std::function<Status(FinishedGroup)>& on_group) {
    GroupInFlight& group = groups_[item];
    EpisodeInFlight& episode = *group.episodes[index];
    FLOTILLA_RETURN_IF_ERROR(episode.builder.take(result.token, result.logprob));
    episode.stream.size = episode.builder.size();
    if (!episode.builder.ended()) return ok_status();
    close(episode.stream);
    if (--group.unfinished > 0) return ok_status();
    close(group.prompt_stream);
    return on_group(finish(item));
  }

  FinishedGroup finish(std::size_t item) {
    GroupInFlight& group = groups_[item];
    FinishedGroup finished{
        .item = item, .prompt_tokens = static_cast<std::int32_t>(group.prompt.size()), .episodes = {}};
    for (auto& in_flight : group.episodes) {
      Episode episode = std::move(in_flight->builder).finish();
      const auto size = static_cast<std::int32_t>(episode.tokens.size());
      episode.spans = {{finished.prompt_tokens, size, settings_.version, settings_.state}};
      for (const TokenSource source : episode.sources) {
        report_.model_tokens += source == TokenSource::kModel;
        report_.environment_tokens += source == TokenSource::kEnvironment;
      }
      finished.episodes.push_back(std::move(episode));
    }
    group.episodes.clear();
    report_.episodes += std::ssize(finished.episodes);
    ++report_.groups;
    return finished;
  }

  // Frees blocks: prompts that nobody uses at present, then the last of the running streams. False when one stream
  // alone is too much.
  bool evict(const std::vector<Active>& streams) {
    bool freed = false;
    for (GroupInFlight& group : groups_) {
      if (group.prompt_stream.sequence && waiting(group.prompt_stream) == 0 && !group.resident()) {
        close(group.prompt_stream);
        freed = true;
      }
    }
    if (!freed) {
      if (streams.size() < 2) return false;
      close(*streams.back().stream);
    }
    ++report_.evictions;
    return true;
  }

  // False when it was not open.
  bool close(Stream& stream) {
    if (!stream.sequence) return false;
    engine_.close(*stream.sequence);
    stream.sequence.reset();
    return true;
  }

  Engine& engine_;
  const EpisodeRules& rules_;
  const SweepSettings& settings_;
  const std::span<const SweepItem> items_;
  std::vector<GroupInFlight> groups_;
  Stream trunk_;  // what all prompts begin with, in whole blocks; empty when there is one group
  std::int64_t most_in_flight_ = std::numeric_limits<std::int64_t>::max();  // groups
  std::size_t first_stream_ = 0;
  SweepReport report_;
};

}  // namespace

Result<SweepReport> run_sweep(Engine& engine, const EpisodeRules& rules, const SweepSettings& settings,
                              std::span<const SweepItem> items, const std::function<Status(FinishedGroup)>& on_group,
                              std::stop_token stop) {
  if (settings.rows_per_call < 1) {
    return invalid_argument(fmt::format("sweep: {} rows a call", settings.rows_per_call));
  }
  Sweep sweep(engine, rules, settings, items);
  return sweep.run(on_group, stop);
}

std::int64_t sweep_blocks_max(const EpisodeRules& rules, std::int32_t prompt_tokens, std::int64_t groups,
                              std::int64_t group_size, bool share_prefixes) {
  if (!share_prefixes) return groups * group_size * blocks_of(longest_episode(rules, prompt_tokens));
  const std::int64_t shared = (prompt_tokens - 1) / kBlockTokens;
  const std::int64_t own = blocks_of(longest_episode(rules, prompt_tokens)) - shared;
  return groups * (shared + 1 + group_size * own);
}

std::int64_t sweep_blocks_min(const EpisodeRules& rules, std::int32_t prompt_tokens) {
  return sweep_blocks_max(rules, prompt_tokens, 1, 1);
}

}  // namespace flotilla
