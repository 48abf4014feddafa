#include "rollout/sweep.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <optional>

#include <fmt/format.h>

#include "rollout/row_share.h"
#include "rollout/span_history.h"

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
  std::uint32_t index;  // in its group
  EpisodeBuilder builder;
  Stream stream;
  SpanHistory history;
};

struct GroupInFlight {
  std::size_t number;  // FinishedGroup::item
  SweepItem item;
  std::vector<TokenId> prompt;
  Stream prompt_stream;
  bool begins_with_trunk = false;
  std::vector<std::unique_ptr<EpisodeInFlight>> episodes;
  std::int64_t unfinished = 0;

  bool resident() const {
    return std::ranges::any_of(episodes, [](const auto& episode) { return episode->stream.sequence.has_value(); });
  }
  // Some episode is to be forked from the prompt.
  bool waits() const {
    return std::ranges::any_of(
        episodes, [](const auto& episode) { return !episode->stream.sequence && !episode->builder.ended(); });
  }
};

class Sweep {
 public:
  Sweep(Engine& engine, const EpisodeRules& rules, const SweepSettings& settings, const SweepHooks& hooks)
      : engine_(engine),
        rules_(rules),
        settings_(settings),
        hooks_(hooks),
        version_(settings.version),
        state_(settings.state) {}
  ~Sweep() { close_all(); }
  Sweep(const Sweep&) = delete;
  Sweep& operator=(const Sweep&) = delete;

  Result<SweepReport> run(std::span<const SweepItem> items, const std::stop_token& stop) {
    for (const SweepItem& item : items) FLOTILLA_RETURN_IF_ERROR(add(item));
    if (groups_.size() > 1 && settings_.share_prefixes) find_trunk();
    report_.prompt_tokens = trunk_.size;
    for (const auto& group : groups_) count_prompt(*group);
    places_ = unfinished_;
    while (!groups_.empty()) {
      if (hooks_.between_calls) keep_in_flight(hooks_.between_calls());
      if (stop.stop_requested()) return cancelled("sweep: asked to stop");
      FLOTILLA_RETURN_IF_ERROR(take_newer());
      FLOTILLA_RETURN_IF_ERROR(admit());
      const std::int64_t before = unfinished_;
      FLOTILLA_RETURN_IF_ERROR(step());
      std::erase_if(groups_, [](const auto& group) { return group->unfinished == 0; });
      if (unfinished_ < before) FLOTILLA_RETURN_IF_ERROR(refill());
      if (std::ranges::none_of(groups_, [](const auto& group) { return group->begins_with_trunk; })) close(trunk_);
    }
    return report_;
  }

 private:
  Status add(const SweepItem& item) {
    auto group = std::make_unique<GroupInFlight>();
    group->number = added_++;
    group->item = item;
    FLOTILLA_ASSIGN_OR_RETURN(group->prompt, episode_prompt(*rules_.tokenizer, item.task));
    if (std::ssize(group->prompt) >= rules_.context) {
      return invalid_argument(fmt::format("task {}: a prompt of {} tokens, the model's context is {}", item.task.index,
                                          group->prompt.size(), rules_.context));
    }
    if (item.episodes < 1) return invalid_argument(fmt::format("a group of {} episodes", item.episodes));
    group->prompt_stream.tokens = &group->prompt;
    group->prompt_stream.size = static_cast<std::int32_t>(group->prompt.size()) - 1;
    for (std::uint32_t e = 0; e < static_cast<std::uint32_t>(item.episodes); ++e) {
      const auto seed = environment_seed(settings_.seed, item.sample_group, e);
      group->episodes.push_back(std::make_unique<EpisodeInFlight>(
          EpisodeInFlight{e, {rules_, group->item.task, seed, group->prompt}, {}, {}}));
      EpisodeInFlight& episode = *group->episodes.back();
      episode.stream.tokens = &episode.builder.episode().tokens;
      episode.stream.size = episode.builder.size();
    }
    group->unfinished = item.episodes;
    unfinished_ += item.episodes;
    latest_episodes_ = item.episodes;
    groups_.push_back(std::move(group));
    return ok_status();
  }

  // Closes the last groups when more than `most` are to be finished.
  void keep_in_flight(std::int64_t most) {
    most_in_flight_ = std::max<std::int64_t>(1, most);
    for (std::int64_t i = most_in_flight_; i < std::ssize(groups_); ++i) {
      GroupInFlight& group = *groups_[static_cast<std::size_t>(i)];
      for (const auto& episode : group.episodes) report_.evictions += close(episode->stream);
      close(group.prompt_stream);
    }
  }

  // What computing the group's prompt takes, beside the trunk.
  void count_prompt(const GroupInFlight& group) {
    const std::int64_t copies = settings_.share_prefixes ? 1 : std::ssize(group.episodes);
    report_.prompt_tokens += copies * (std::ssize(group.prompt) - (group.begins_with_trunk ? trunk_.size : 0));
  }

  void find_trunk() {
    trunk_tokens_ = groups_.front()->prompt;
    trunk_.tokens = &trunk_tokens_;
    trunk_.size = groups_.front()->prompt_stream.size;
    for (const auto& group : groups_) {
      const auto end = group->prompt.begin() + std::min(trunk_.size, group->prompt_stream.size);
      const auto differs = std::mismatch(group->prompt.begin(), end, trunk_tokens_.begin()).first;
      trunk_.size = static_cast<std::int32_t>(differs - group->prompt.begin());
    }
    // Whole blocks are shared without a copy, so that the trunk takes no block that its groups would not take.
    trunk_.size -= trunk_.size % kBlockTokens;
    for (const auto& group : groups_) group->begins_with_trunk = trunk_.size > 0;
  }

  // Groups in the places of episodes that have ended.
  Status refill() {
    if (!hooks_.refill) return ok_status();
    while (unfinished_ + latest_episodes_ <= places_) {
      FLOTILLA_ASSIGN_OR_RETURN(const std::optional<SweepItem> item, hooks_.refill());
      if (!item) return ok_status();
      FLOTILLA_RETURN_IF_ERROR(add(*item));
      GroupInFlight& group = *groups_.back();
      group.begins_with_trunk =
          trunk_.size > 0 && group.prompt_stream.size >= trunk_.size &&
          std::equal(group.prompt.begin(), group.prompt.begin() + trunk_.size, trunk_tokens_.begin());
      count_prompt(group);
    }
    return ok_status();
  }

  Status take_newer() {
    if (!hooks_.newer) return ok_status();
    std::optional<NextVersion> next = hooks_.newer();
    if (!next) return ok_status();
    if (next->version <= version_) {
      return internal_error(fmt::format("sweep: version {} after version {}", next->version.value(), version_.value()));
    }
    // What begins or is computed again from here on is the new version's, its prompt too.
    close(trunk_);
    for (const auto& group : groups_) {
      close(group->prompt_stream);
      for (const auto& episode : group->episodes) {
        if (!episode->stream.sequence) continue;
        const bool kept =
            settings_.kv == KvAfterSwap::kKeep &&
            episode->history.keep(engine_.length(*episode->stream.sequence), next->version, next->state_digest);
        if (!kept) close(episode->stream);
      }
    }
    FLOTILLA_RETURN_IF_ERROR(engine_.load(next->weights, OpenSequences::kKeep));
    next->weights = nullptr;
    version_ = next->version;
    state_ = next->state_digest;
    ++report_.swaps;
    if (hooks_.on_swap) hooks_.on_swap(version_);
    return ok_status();
  }

  std::int32_t waiting(const Stream& stream) const {
    return stream.sequence ? stream.size - engine_.length(*stream.sequence) : 0;
  }

  struct Active {
    Stream* stream;
    std::int32_t waiting;  // tokens to append
    GroupInFlight* group;
    EpisodeInFlight* episode;  // none: the prompt or the trunk
  };

  // Streams with tokens to append, in order of group and episode.
  std::vector<Active> active() {
    std::vector<Active> streams;
    const auto add = [&](Stream& stream, GroupInFlight* group, EpisodeInFlight* episode) {
      if (const std::int32_t tokens = waiting(stream); tokens > 0) streams.push_back({&stream, tokens, group, episode});
    };
    add(trunk_, nullptr, nullptr);
    for (const auto& group : groups_) {
      add(group->prompt_stream, group.get(), nullptr);
      for (const auto& episode : group->episodes) add(episode->stream, group.get(), episode.get());
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
    std::int64_t unfinished = 0;
    for (const auto& group : groups_) {
      if (++unfinished > most_in_flight_) return ok_status();
      if (!group->waits()) continue;
      if (settings_.share_prefixes && !group->prompt_stream.sequence) {
        if (group->begins_with_trunk && !trunk_.sequence) {
          if (!fits(blocks_of(trunk_.size))) return ok_status();
          FLOTILLA_ASSIGN_OR_RETURN(trunk_.sequence, engine_.open());
        }
        if (group->begins_with_trunk && waiting(trunk_) > 0) continue;
        const std::int64_t shared = group->begins_with_trunk ? trunk_.size / kBlockTokens : 0;
        if (!fits(blocks_of(group->prompt_stream.size) + 1 - shared)) return ok_status();
        FLOTILLA_ASSIGN_OR_RETURN(group->prompt_stream.sequence,
                                  group->begins_with_trunk ? engine_.fork(*trunk_.sequence) : engine_.open());
      }
      if (waiting(group->prompt_stream) > 0) continue;
      for (const auto& episode : group->episodes) {
        if (episode->stream.sequence || episode->builder.ended()) continue;
        // The prompt's last block is shared until the episode writes into it.
        const std::int64_t shared = settings_.share_prefixes ? group->prompt_stream.size / kBlockTokens : 0;
        if (!fits(blocks_of(episode->stream.size) - shared)) return ok_status();
        FLOTILLA_ASSIGN_OR_RETURN(episode->stream.sequence, settings_.share_prefixes
                                                                ? engine_.fork(*group->prompt_stream.sequence)
                                                                : engine_.open());
        episode->history.begin_anew(version_, state_);
      }
    }
    return ok_status();
  }

  // One forward call, or an eviction when it finds too few blocks.
  Status step() {
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
      const bool reads = a.episode != nullptr && rows == a.waiting;
      if (reads) {
        readouts[i] = {.offset = rows - 1,
                       .sampling = settings_.sampling,
                       .key = {.seed = settings_.seed,
                               .group = a.group->item.sample_group,
                               .episode = a.episode->index,
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
      FLOTILLA_RETURN_IF_ERROR(take(*readers[i]->group, *readers[i]->episode, (*results)[i]));
    }
    return ok_status();
  }

  Status take(GroupInFlight& group, EpisodeInFlight& episode, const ReadoutResult& result) {
    episode.history.sampled(episode.builder.size());
    FLOTILLA_RETURN_IF_ERROR(episode.builder.take(result.token, result.logprob));
    episode.stream.size = episode.builder.size();
    if (!episode.builder.ended()) return ok_status();
    close(episode.stream);
    --unfinished_;
    if (--group.unfinished > 0) return ok_status();
    close(group.prompt_stream);
    return hooks_.on_group(finish(group));
  }

  FinishedGroup finish(GroupInFlight& group) {
    FinishedGroup finished{.item = group.number,
                           .prompt_tokens = static_cast<std::int32_t>(group.prompt.size()),
                           .episodes = {},
                           .so_far = {}};
    for (const auto& in_flight : group.episodes) {
      Episode episode = std::move(in_flight->builder).finish();
      episode.spans = std::move(in_flight->history).finish(static_cast<std::int32_t>(episode.tokens.size()));
      for (const TokenSource source : episode.sources) {
        report_.model_tokens += source == TokenSource::kModel;
        report_.environment_tokens += source == TokenSource::kEnvironment;
      }
      finished.episodes.push_back(std::move(episode));
    }
    group.episodes.clear();
    report_.episodes += std::ssize(finished.episodes);
    ++report_.groups;
    finished.so_far = report_;
    return finished;
  }

  // Frees blocks: prompts that nobody uses at present, then the last of the running streams; beside a single one, whose
  // prompt may be of older weights, all that is there to be forked. False when it alone is too much.
  bool evict(const std::vector<Active>& streams) {
    bool freed = false;
    for (const auto& group : groups_) {
      if (group->prompt_stream.sequence && waiting(group->prompt_stream) == 0 && !group->resident()) {
        close(group->prompt_stream);
        freed = true;
      }
    }
    if (!freed && streams.size() > 1) {
      close(*streams.back().stream);
      freed = true;
    }
    if (!freed) {
      const auto give_up = [&](Stream& stream) {
        if (!stream.sequence || waiting(stream) > 0) return;
        close(stream);
        freed = true;
      };
      for (const auto& group : groups_) give_up(group->prompt_stream);
      give_up(trunk_);
    }
    report_.evictions += freed;
    return freed;
  }

  // False when it was not open.
  bool close(Stream& stream) {
    if (!stream.sequence) return false;
    engine_.close(*stream.sequence);
    stream.sequence.reset();
    return true;
  }

  void close_all() {
    for (const auto& group : groups_) {
      for (const auto& episode : group->episodes) close(episode->stream);
      close(group->prompt_stream);
    }
    close(trunk_);
  }

  Engine& engine_;
  const EpisodeRules& rules_;
  const SweepSettings& settings_;
  const SweepHooks& hooks_;
  Version version_;  // that the engine holds
  Sha256Digest state_;
  std::vector<std::unique_ptr<GroupInFlight>> groups_;  // unfinished
  std::size_t added_ = 0;                               // groups so far
  std::int64_t unfinished_ = 0;                         // episodes
  std::int64_t places_ = 0;                             // of episodes: those of the beginning
  std::int64_t latest_episodes_ = 0;                    // of the group that was added last
  std::vector<TokenId> trunk_tokens_;                   // what all prompts of the beginning begin with
  Stream trunk_;                                        // in whole blocks; empty when there was one group
  std::int64_t most_in_flight_ = std::numeric_limits<std::int64_t>::max();  // groups
  std::size_t first_stream_ = 0;
  SweepReport report_;
};

}  // namespace

Result<SweepReport> run_sweep(Engine& engine, const EpisodeRules& rules, const SweepSettings& settings,
                              std::span<const SweepItem> items, const SweepHooks& hooks, std::stop_token stop) {
  if (settings.rows_per_call < 1) {
    return invalid_argument(fmt::format("sweep: {} rows a call", settings.rows_per_call));
  }
  return Sweep(engine, rules, settings, hooks).run(items, stop);
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
