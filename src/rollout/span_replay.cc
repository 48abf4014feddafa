#include "rollout/span_replay.h"

#include <algorithm>
#include <bit>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include <fmt/format.h>

namespace flotilla {
namespace {

std::int64_t blocks_of(std::int64_t tokens) { return (tokens + kBlockTokens - 1) / kBlockTokens; }

// A span with a new context and those after it that keep it: what is computed in one sequence.
struct Chain {
  ReplayedGroup* subject;
  std::size_t episode;
  std::span<const VersionSpan> spans;
  std::size_t next = 0;  // span to compute
  std::optional<SequenceId> sequence;

  const Episode& recorded() const { return subject->group->episodes[episode]; }
  bool due(Version version) const { return next < spans.size() && spans[next].version == version; }
};

std::vector<Chain> chains_of(std::span<ReplayedGroup> groups) {
  std::vector<Chain> chains;
  for (ReplayedGroup& subject : groups) {
    if (!subject.status.ok()) continue;
    for (std::size_t e = 0; e < subject.group->episodes.size(); ++e) {
      const std::span<const VersionSpan> spans = subject.group->episodes[e].spans;
      for (std::size_t begin = 0; begin < spans.size();) {
        std::size_t end = begin + 1;
        while (end < spans.size() && spans[end].context == SpanContext::kKept) ++end;
        chains.push_back(
            {.subject = &subject, .episode = e, .spans = spans.subspan(begin, end - begin), .sequence = {}});
        begin = end;
      }
    }
  }
  // Those of one version together: each is loaded as seldom as may be.
  std::ranges::stable_sort(chains, {}, [](const Chain& chain) { return chain.spans.front().version; });
  return chains;
}

Status compare(const Chain& chain, const VersionSpan& span, std::int32_t position, const ReadoutResult& replayed) {
  const TokenId token = chain.recorded().tokens[position];
  const float logprob = chain.recorded().logprobs[position];
  if (replayed.token != token) {
    return invalid_argument(fmt::format(
        "episode {}, position {}: recorded is token {}, version {} samples {} (the recorded one has the logprob {})",
        chain.episode, position, token, span.version.value(), replayed.token, replayed.target_logprob));
  }
  const auto recorded_bits = std::bit_cast<std::uint32_t>(logprob);
  const auto replayed_bits = std::bit_cast<std::uint32_t>(replayed.logprob);
  if (replayed_bits == recorded_bits) return ok_status();
  return invalid_argument(fmt::format(
      "episode {}, position {}: recorded is the logprob {} ({:08x}), version {} gives {} ({:08x})", chain.episode,
      position, logprob, recorded_bits, span.version.value(), replayed.logprob, replayed_bits));
}

class Replay {
 public:
  Replay(Engine& engine, const LoadVersion& load) : engine_(engine), load_(load) {}
  ~Replay() {
    for (Chain& chain : batch_) close(chain.sequence);
    for (auto& [group, sequence] : prompts_) engine_.close(sequence);
  }
  Replay(const Replay&) = delete;
  Replay& operator=(const Replay&) = delete;

  // Takes chains off the front, as many as the pool holds and at least one, and computes them.
  void run(std::span<Chain>& chains) {
    std::size_t count = 0;
    std::int64_t blocks = 0;
    std::set<std::pair<const Group*, Version>> prompts;
    for (; count < chains.size(); ++count) {
      const Chain& chain = chains[count];
      const Group* group = chain.subject->group;
      const std::int64_t shared = (group->prompt_tokens - 1) / kBlockTokens;
      blocks += blocks_of(chain.spans.back().end - 1) - shared;
      if (prompts.emplace(group, chain.spans.front().version).second) blocks += shared + 1;
      if (count > 0 && blocks > engine_.usage().blocks_total) break;
    }
    batch_.assign(chains.begin(), chains.begin() + static_cast<std::ptrdiff_t>(count));
    chains = chains.subspan(count);
    std::set<Version> versions;
    for (const Chain& chain : batch_) {
      for (const VersionSpan& span : chain.spans) versions.insert(span.version);
    }
    for (const Version version : versions) compute(version);
  }

 private:
  std::vector<Chain*> due(Version version) {
    std::vector<Chain*> chains;
    for (Chain& chain : batch_) {
      if (chain.subject->status.ok() && chain.due(version)) chains.push_back(&chain);
    }
    return chains;
  }

  // All spans of one version.
  void compute(Version version) {
    if (due(version).empty()) return;
    const Result<Sha256Digest> state = load_(version);
    for (Chain* chain : due(version)) {
      const Sha256Digest& recorded = chain->spans[chain->next].state;
      if (!state.ok()) {
        chain->subject->status = state.status();
      } else if (*state != recorded) {
        chain->subject->status =
            invalid_argument(fmt::format("the state digest of version {} is {}, the replay gives {}", version.value(),
                                         recorded.to_hex(), state->to_hex()));
      }
    }
    const std::vector<Chain*> chains = due(version);
    Status status = open(chains);
    if (status.ok()) status = forward(chains);
    const bool shared =
        std::ranges::any_of(chains, [&](const Chain* chain) { return chain->subject != chains.front()->subject; });
    for (Chain* chain : chains) {
      if (!status.ok()) {
        chain->subject->status = status;
        chain->subject->shared = shared;
      }
      ++chain->next;
    }
    for (auto& [group, sequence] : prompts_) engine_.close(sequence);
    prompts_.clear();
    for (Chain& chain : batch_) {
      if (chain.next == chain.spans.size() || !chain.subject->status.ok()) close(chain.sequence);
    }
  }

  // Prompts without their last token, then a fork for each chain that begins.
  Status open(std::span<Chain* const> chains) {
    std::vector<Chunk> chunks;
    for (const Chain* chain : chains) {
      const Group* group = chain->subject->group;
      if (chain->next > 0 || prompts_.contains(group)) continue;
      FLOTILLA_ASSIGN_OR_RETURN(prompts_[group], engine_.open());
      const auto prompt = std::span(chain->recorded().tokens).first(static_cast<std::size_t>(group->prompt_tokens - 1));
      if (!prompt.empty()) chunks.push_back({prompts_[group], prompt, {}});
    }
    FLOTILLA_RETURN_IF_ERROR(engine_.forward(chunks).status());
    for (Chain* chain : chains) {
      if (chain->next > 0) continue;
      FLOTILLA_ASSIGN_OR_RETURN(chain->sequence, engine_.fork(prompts_.at(chain->subject->group)));
    }
    return ok_status();
  }

  Status forward(std::span<Chain* const> chains) {
    std::vector<std::vector<Readout>> readouts(chains.size());
    std::vector<Chunk> chunks;
    for (std::size_t i = 0; i < chains.size(); ++i) {
      const Chain& chain = *chains[i];
      const VersionSpan& span = chain.spans[chain.next];
      const GroupIdentity& identity = chain.subject->group->identity;
      const std::int32_t computed = engine_.length(*chain.sequence);
      for (std::int32_t position = span.begin; position < span.end; ++position) {
        if (chain.recorded().sources[position] != TokenSource::kModel) continue;
        readouts[i].push_back({.offset = position - 1 - computed,
                               .sampling = identity.sampling,
                               .key = {.seed = identity.seed,
                                       .group = sample_group(identity.group),
                                       .episode = static_cast<std::uint32_t>(chain.episode),
                                       .position = static_cast<std::uint32_t>(position)},
                               .target = chain.recorded().tokens[position]});
      }
      chunks.push_back({*chain.sequence, std::span(chain.recorded().tokens).subspan(computed, span.end - 1 - computed),
                        readouts[i]});
    }
    FLOTILLA_ASSIGN_OR_RETURN(const std::vector<ReadoutResult> results, engine_.forward(chunks));
    std::size_t result = 0;
    for (std::size_t i = 0; i < chains.size(); ++i) {
      const VersionSpan& span = chains[i]->spans[chains[i]->next];
      for (const Readout& readout : readouts[i]) {
        Status& status = chains[i]->subject->status;
        const auto position = static_cast<std::int32_t>(readout.key.position);
        if (status.ok()) status = compare(*chains[i], span, position, results[result]);
        ++result;
      }
    }
    return ok_status();
  }

  void close(std::optional<SequenceId>& sequence) {
    if (sequence) engine_.close(*sequence);
    sequence.reset();
  }

  Engine& engine_;
  const LoadVersion& load_;
  std::vector<Chain> batch_;
  std::map<const Group*, SequenceId> prompts_;  // of the present version
};

}  // namespace

void replay_spans(Engine& engine, const LoadVersion& load, std::span<ReplayedGroup> groups) {
  std::vector<Chain> all = chains_of(groups);
  for (std::span<Chain> chains = all; !chains.empty();) Replay(engine, load).run(chains);
}

}  // namespace flotilla
