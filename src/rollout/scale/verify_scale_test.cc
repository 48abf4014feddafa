// Verification judged at scale: 10,000 honest episodes, 10,000 that something was done to, and a second replay on the
// engine (token by token, one sequence, no batch, scalar kernels) to say which of the latter are honest all the same.
#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cstdlib>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include <fmt/format.h>

#include "base/philox.h"
#include "rollout/run_for_tests.h"
#include "rollout/sweep.h"
#include "rollout/verify.h"

namespace flotilla {
namespace {

constexpr std::int64_t kEpisodes = 10'000;
constexpr std::int32_t kGroupSize = 2;
constexpr std::uint64_t kVersions = 8;

// FLOTILLA_SEED tries another one.
std::uint64_t test_seed() {
  const char* text = std::getenv("FLOTILLA_SEED");
  return text == nullptr ? 1 : std::strtoull(text, nullptr, 10);
}

const PulledVersion& published(Version version) {
  static const std::vector<PulledVersion> versions = [] {
    std::vector<PulledVersion> all;
    for (std::uint64_t v = 0; v < kVersions; ++v) all.push_back(toy_version(v));
    return all;
  }();
  return versions.at(version.value());
}

template <typename T>
std::size_t any(PhiloxStream& random, const T& list) {
  return random.below(static_cast<std::uint64_t>(std::ssize(list)));
}

// A run, its honest workers, and both replays.
class Fleet {
 public:
  Fleet()
      : run_([](RunSpec& spec) {
          spec.group_size = kGroupSize;
          spec.swap = WeightSwap::kKeep;
        }),
        assets_(run_.assets().value()) {}

  const RunAssets& assets() const { return assets_; }

  // Of a kind that is kept: threads cost more than the toy.
  Engine& engine(Isa isa, int threads, std::int64_t kv_blocks) {
    auto& engine = engines_[{isa, threads, kv_blocks}];
    if (!engine) engine = toy_engine(kv_blocks, threads, isa);
    return *engine;
  }

  GroupVerifier verifier(Engine& engine) const {
    return GroupVerifier(assets_, engine, [](Version version) -> Result<PulledVersion> {
      if (version.value() >= kVersions) return not_found("no such version");
      return published(version);
    });
  }

  GroupIdentity identity(const WorkerId& worker, std::uint64_t counter) const {
    GroupIdentity identity;
    identity.run = assets_.spec.run;
    identity.seed = assets_.spec.seed;
    identity.operator_id = OperatorId("someone");
    identity.worker = worker;
    identity.counter = counter;
    identity.task = assigned_task(identity.seed, worker, counter, assets_.environment->task_count(Split::kTrain));
    identity.backend = "cpu";
    identity.tokenizer = assets_.tokenizer->digest();
    identity.environment = assets_.environment->digest();
    identity.corpus = assets_.spec.environment;
    identity.sampling = {
        .temperature = assets_.spec.temperature, .top_k = assets_.spec.top_k, .top_p = assets_.spec.top_p};
    identity.group = group_id(identity);
    return identity;
  }

  struct Sweep {
    SweepSettings settings;
    std::vector<GroupIdentity> identities;
    std::vector<std::uint64_t> swaps;  // looks before which the next version comes
    std::shared_ptr<const GridState> weights;
  };

  std::vector<Group> sweep(Engine& engine, const Sweep& sweep, SweepReport* report = nullptr) {
    FLOTILLA_CHECK(engine.load(*sweep.weights).ok());
    std::vector<SweepItem> items;
    for (const GroupIdentity& identity : sweep.identities) {
      items.push_back({.task = assets_.environment->task(identity.split, identity.task).value(),
                       .sample_group = sample_group(identity.group),
                       .episodes = kGroupSize});
    }
    std::vector<Group> groups;
    std::uint64_t looks = 0;
    std::uint64_t newest = sweep.settings.version.value();
    const SweepHooks hooks{.on_group =
                               [&](FinishedGroup finished) {
                                 groups.push_back({.identity = sweep.identities[finished.item],
                                                   .prompt_tokens = finished.prompt_tokens,
                                                   .episodes = std::move(finished.episodes)});
                                 return ok_status();
                               },
                           .newer = [&]() -> std::optional<NextVersion> {
                             const bool now = std::ranges::count(sweep.swaps, ++looks) > 0;
                             if (!now || newest + 1 == kVersions) return std::nullopt;
                             return as_next(published(Version(++newest)));
                           }};
    const auto done = run_sweep(engine, assets_.rules, sweep.settings, items, hooks);
    FLOTILLA_CHECK(done.ok());
    if (report != nullptr) *report = *done;
    return groups;
  }

  // Whether an honest worker, given the same assignment and the same versions at the same places, makes this very
  // group.
  bool is_honest(const Group& group) {
    Engine& engine = this->engine(Isa::kScalar, 1, 16);
    if (!check_group(group).ok()) return false;
    const GroupIdentity& claimed = group.identity;
    const GroupIdentity honest = identity(claimed.worker, claimed.counter);
    if (claimed.seed != honest.seed || claimed.task != honest.task || claimed.group != honest.group) return false;
    const Task task = assets_.environment->task(Split::kTrain, honest.task).value();
    if (group.prompt_tokens != std::ssize(episode_prompt(*assets_.tokenizer, task).value())) return false;
    if (std::ssize(group.episodes) != kGroupSize) return false;
    for (std::uint32_t e = 0; e < kGroupSize; ++e) {
      const Episode& recorded = group.episodes[e];
      for (const VersionSpan& span : recorded.spans) {
        if (span.version.value() >= kVersions || span.state != published(span.version).state_digest) return false;
      }
      const Episode replayed = plain_replay(engine, assets_.rules, task, honest.seed, sample_group(honest.group), e,
                                            honest.sampling, recorded.spans, published);
      if (!same_episode(recorded, replayed)) return false;
    }
    return true;
  }

 private:
  ToyRun run_;
  RunAssets assets_;
  std::map<std::tuple<Isa, int, std::int64_t>, std::unique_ptr<Engine>> engines_;
};

// A sweep as some machine might make it.
Fleet::Sweep any_sweep(const Fleet& fleet, PhiloxStream& random, std::uint64_t number) {
  Fleet::Sweep sweep;
  const Version version(random.below(kVersions - 2));
  sweep.settings = {.seed = fleet.assets().spec.seed,
                    .sampling = {},
                    .version = version,
                    .state = published(version).state_digest,
                    .kv = random.below(2) == 0 ? KvAfterSwap::kKeep : KvAfterSwap::kRecompute,
                    .rows_per_call = std::array{1, 5, 16, 64, 300}[random.below(5)]};
  sweep.weights = published(version).state;
  const WorkerId worker(fmt::format("{:032x}", number));
  const std::uint64_t first = random.below(1'000'000);
  const std::uint64_t groups = std::array{1, 2, 4, 16}[random.below(4)];
  for (std::uint64_t counter = first; counter < first + groups; ++counter) {
    sweep.identities.push_back(fleet.identity(worker, counter));
  }
  sweep.settings.sampling = sweep.identities.front().sampling;
  // Half of them keep their weights to the end. An episode of the toy has some 25 tokens and a sweep as many calls, or
  // more where they are short.
  const std::uint64_t looks =
      std::max(std::uint64_t{25}, groups * 80 / static_cast<std::uint64_t>(sweep.settings.rows_per_call));
  for (std::uint64_t swaps = random.below(2) * (1 + random.below(3)); swaps > 0; --swaps) {
    sweep.swaps.push_back(1 + random.below(looks));
  }
  return sweep;
}

TEST(VerifyAtScale, TakesEveryHonestEpisode) {
  SCOPED_TRACE(fmt::format("FLOTILLA_SEED={}", test_seed()));
  Fleet fleet;
  PhiloxStream random(test_seed(), 1);
  std::int64_t episodes = 0, tokens = 0, evictions = 0, alarms = 0;
  std::map<std::string, std::int64_t> counts;
  const std::vector<Isa> isas = supported_isas();
  for (std::uint64_t number = 0; episodes < kEpisodes; ++number) {
    const auto any_engine = [&](std::int64_t blocks) -> Engine& {
      return fleet.engine(isas[any(random, isas)], 1 + static_cast<int>(random.below(3)), blocks);
    };
    const std::int64_t blocks = std::array{10, 16, 40, 1000}[random.below(4)];
    Engine& maker = any_engine(blocks);
    SweepReport report;
    const Fleet::Sweep sweep = any_sweep(fleet, random, number);
    const std::vector<Group> groups = fleet.sweep(maker, sweep, &report);
    evictions += report.evictions;
    Engine& checker = any_engine(std::array{10, 40, 1000}[random.below(3)]);
    const auto results = fleet.verifier(checker).verify(groups);
    for (std::size_t i = 0; i < groups.size(); ++i) {
      EXPECT_TRUE(results[i].ok()) << "sweep " << number << " group " << i << ": " << results[i].status().to_string();
      alarms += !results[i].ok();
      episodes += kGroupSize;
      if (!results[i].ok()) continue;
      tokens += results[i]->model_tokens;
      counts[fmt::format("made by {}", isa_name(maker.isa()))] += kGroupSize;
      counts[fmt::format("checked by {}", isa_name(checker.isa()))] += kGroupSize;
      counts[fmt::format("{} groups a sweep", groups.size())] += kGroupSize;
      counts[fmt::format("made in a pool of {} blocks", blocks)] += kGroupSize;
      for (const Episode& episode : groups[i].episodes) {
        const auto kept = std::ranges::count(episode.spans, SpanContext::kKept, &VersionSpan::context);
        counts[episode.spans.size() == 1 ? "of one version"
               : kept > 0                ? "of several versions, context kept"
                                         : "of several versions, context computed anew"] += 1;
      }
    }
    if (alarms > 5) break;
  }
  EXPECT_EQ(alarms, 0);
  fmt::print("{} honest episodes, {} model tokens, {} evictions, {} false alarms\n", episodes, tokens, evictions,
             alarms);
  for (const auto& [what, count] : counts) fmt::print("  {:<45} {:>6}\n", what, count);
  EXPECT_GT(evictions, 100);
  EXPECT_EQ(counts.size(), 2 * isas.size() + 4 + 4 + 3) << "every way was taken";
  for (const auto& [what, count] : counts) EXPECT_GT(count, 100) << what;
}

// What is done to one group. False: it cannot be done to this one.
using Mutation = std::function<bool(Group&, PhiloxStream&)>;

Episode& any_episode(Group& group, PhiloxStream& random) { return group.episodes[any(random, group.episodes)]; }

std::optional<std::size_t> any_token_of(const Episode& episode, TokenSource source, PhiloxStream& random) {
  std::vector<std::size_t> positions;
  for (std::size_t i = 0; i < episode.tokens.size(); ++i) {
    if (episode.sources[i] == source) positions.push_back(i);
  }
  if (positions.empty()) return std::nullopt;
  return positions[any(random, positions)];
}

bool change_token(Group& group, TokenSource source, PhiloxStream& random) {
  Episode& episode = any_episode(group, random);
  const auto position = any_token_of(episode, source, random);
  if (!position) return false;
  TokenId& token = episode.tokens[*position];
  token = (token + 1 + static_cast<TokenId>(random.below(19))) % 20;
  return true;
}

bool flip_logprob_bit(Group& group, PhiloxStream& random) {
  Episode& episode = any_episode(group, random);
  float& logprob = episode.logprobs[*any_token_of(episode, TokenSource::kModel, random)];
  logprob = std::bit_cast<float>(std::bit_cast<std::uint32_t>(logprob) ^ (1u << random.below(32)));
  return true;
}

bool change_version(Group& group, PhiloxStream& random) {
  VersionSpan& span = [&]() -> VersionSpan& {
    Episode& episode = any_episode(group, random);
    return episode.spans[any(random, episode.spans)];
  }();
  const Version other((span.version.value() + 1 + random.below(kVersions - 1)) % kVersions);
  span.version = other;
  span.state = published(other).state_digest;
  return true;
}

bool drop_turn(Group& group, PhiloxStream& random) {
  Episode& episode = any_episode(group, random);
  if (episode.turns.size() < 2) return false;
  episode.turns.pop_back();
  const std::int32_t size = episode.turns.back();
  episode.tokens.resize(size);
  episode.sources.resize(size);
  episode.logprobs.resize(size);
  while (episode.spans.back().begin >= size) episode.spans.pop_back();
  episode.spans.back().end = size;
  return true;
}

// A turn of one or two tokens more, behind the last one.
bool add_turn(Group& group, PhiloxStream& random) {
  Episode& episode = any_episode(group, random);
  for (std::uint64_t tokens = 1 + random.below(2); tokens > 0; --tokens) {
    episode.tokens.push_back(static_cast<TokenId>(random.below(20)));
    episode.sources.push_back(TokenSource::kModel);
    episode.logprobs.push_back(-3);
  }
  episode.turns.push_back(static_cast<std::int32_t>(episode.tokens.size()));
  episode.spans.back().end = episode.turns.back();
  return true;
}

bool move_boundary(Group& group, PhiloxStream& random) {
  Episode& episode = any_episode(group, random);
  if (episode.spans.size() < 2) return false;
  const std::size_t span = 1 + random.below(episode.spans.size() - 1);
  const std::int32_t before = episode.spans[span - 1].begin + 1, after = episode.spans[span].end - 1;
  const std::int32_t to =
      before + static_cast<std::int32_t>(random.below(static_cast<std::uint64_t>(after - before + 1)));
  if (to == episode.spans[span].begin) return false;
  episode.spans[span - 1].end = episode.spans[span].begin = to;
  return true;
}

bool change_context(Group& group, PhiloxStream& random) {
  Episode& episode = any_episode(group, random);
  if (episode.spans.size() < 2) return false;
  SpanContext& context = episode.spans[1 + random.below(episode.spans.size() - 1)].context;
  context = context == SpanContext::kNew ? SpanContext::kKept : SpanContext::kNew;
  return true;
}

// Says of an episode of several versions that its first one wrote all of it.
bool hide_swap(Group& group, PhiloxStream& random) {
  Episode& episode = any_episode(group, random);
  if (episode.spans.size() < 2) return false;
  episode.spans.resize(1);
  episode.spans[0].end = static_cast<std::int32_t>(episode.tokens.size());
  return true;
}

class Mutants {
 public:
  Mutants(Fleet& fleet, PhiloxStream& random) : fleet_(fleet), random_(random) {
    while (std::ssize(honest_) < 1500) {
      const auto groups = fleet_.sweep(fleet_.engine(Isa::kAuto, 1, 1000), any_sweep(fleet_, random_, number_++));
      honest_.insert(honest_.end(), groups.begin(), groups.end());
    }
  }

  Group of(const Mutation& mutate) {
    while (true) {
      Group group = honest_[any(random_, honest_)];
      if (mutate(group, random_)) return group;
    }
  }

  // One group by a worker that does something else than it says; `change` does it.
  Group made_with(const std::function<void(Fleet::Sweep&)>& change) {
    Fleet::Sweep sweep = any_sweep(fleet_, random_, number_++);
    sweep.identities.resize(1);
    change(sweep);
    return fleet_.sweep(fleet_.engine(Isa::kAuto, 1, 1000), sweep).front();
  }

 private:
  Fleet& fleet_;
  PhiloxStream& random_;
  std::uint64_t number_ = 1'000'000;
  std::vector<Group> honest_;
};

// One integer of the weights is off by one step. `tensor` says in which kind of tensor.
void step_weight(Fleet::Sweep& sweep, PhiloxStream& random, std::string& tensor) {
  sweep.swaps.clear();  // with the next version the worker would have the right weights again
  GridState state = *sweep.weights;
  const ModelDescription& model = toy_model().description;
  // By size, as a random bit of memory would choose.
  std::uint64_t all = 0;
  for (const TensorSpec& spec : model.tensors) all += static_cast<std::uint64_t>(spec.size());
  std::uint64_t at = random.below(all);
  std::size_t index = 0;
  while (at >= static_cast<std::uint64_t>(model.tensors[index].size())) {
    at -= static_cast<std::uint64_t>(model.tensors[index++].size());
  }
  const auto step = [&](auto& q, int limit) {
    q += random.below(2) == 0 ? (q < limit ? 1 : -1) : (q > -limit ? -1 : 1);
  };
  GridTensor& changed = state.tensors[index];
  changed.q.empty() ? step(changed.vector_q[at], kVectorLimit) : step(changed.q[at], kMatrixLimit);
  sweep.weights = std::make_shared<const GridState>(std::move(state));
  tensor = model.tensors[index].kind == TensorKind::kVector     ? "a norm"
           : index == static_cast<std::size_t>(model.embedding) ? "the embedding"
           : index == static_cast<std::size_t>(model.head)      ? "the head"
                                                                : "a matrix of a layer";
}

struct Count {
  std::int64_t made = 0, refused = 0, equivalent = 0;
};

TEST(VerifyAtScale, RefusesEveryMutationThatAnHonestReplayDoesNotGive) {
  SCOPED_TRACE(fmt::format("FLOTILLA_SEED={}", test_seed()));
  Fleet fleet;
  PhiloxStream random(test_seed(), 2);
  Mutants mutants(fleet, random);
  std::string tensor;
  const auto edited = [&](const Mutation& mutation) {
    return [&mutants, mutation](std::string&) { return mutants.of(mutation); };
  };
  const std::vector<std::pair<std::string, std::function<Group(std::string&)>>> kinds = {
      {"a model token", edited([](Group& g, PhiloxStream& r) { return change_token(g, TokenSource::kModel, r); })},
      {"a token of the prompt, in one episode or all", edited([](Group& g, PhiloxStream& r) {
         if (r.below(2) == 0) return change_token(g, TokenSource::kPrompt, r);
         const std::size_t at = r.below(static_cast<std::uint64_t>(g.prompt_tokens));
         for (Episode& episode : g.episodes) episode.tokens[at] = (episode.tokens[at] + 1) % 20;
         return true;
       })},
      {"one bit of a logprob", edited(flip_logprob_bit)},
      {"a version", edited(change_version)},
      {"the seed", edited([](Group& g, PhiloxStream& r) {
         g.identity.seed ^= std::uint64_t{1} << r.below(64);
         return true;
       })},
      {"drawn with another seed",
       [&](std::string&) {
         return mutants.made_with([&](Fleet::Sweep& s) { s.settings.seed ^= std::uint64_t{1} << random.below(64); });
       }},
      {"drawn with another group's numbers",
       [&](std::string&) {
         GroupIdentity claimed;
         Group group = mutants.made_with([&](Fleet::Sweep& s) {
           claimed = s.identities[0];
           s.identities[0].counter += 1000 * (1 + random.below(9));  // the same task
           s.identities[0].group = group_id(s.identities[0]);
         });
         group.identity = claimed;
         return group;
       }},
      {"an observation",
       edited([](Group& g, PhiloxStream& r) { return change_token(g, TokenSource::kEnvironment, r); })},
      {"the reward", edited([](Group& g, PhiloxStream& r) {
         Episode& episode = any_episode(g, r);
         episode.reward = r.below(2) == 0 ? 1 - episode.reward : episode.reward + 0x1p-40;
         return true;
       })},
      {"a dropped turn", edited(drop_turn)},
      {"an added turn", edited(add_turn)},
      {"a span's boundary", edited(move_boundary)},
      {"a span's context", edited(change_context)},
      {"a swap that is not told", edited(hide_swap)},
      {"a weight off by one step, in ",
       [&](std::string& where) { return mutants.made_with([&](Fleet::Sweep& s) { step_weight(s, random, where); }); }},
      {"the sampling",
       [&](std::string&) {
         return mutants.made_with([&](Fleet::Sweep& s) {
           float& temperature = s.settings.sampling.temperature;
           const auto steps = static_cast<std::uint32_t>(1 + random.below(1 << 22));
           temperature = std::bit_cast<float>(std::bit_cast<std::uint32_t>(temperature) + steps);
         });
       }},
  };
  std::map<std::string, Count> counts;
  std::int64_t wrong = 0;
  GroupVerifier verifier = fleet.verifier(fleet.engine(Isa::kAuto, 1, 1000));
  constexpr std::int64_t kTogether = 16;
  for (std::int64_t made = 0; made < kEpisodes && wrong < 5; made += kTogether) {
    std::vector<Group> groups;
    std::vector<std::string> names;
    for (std::int64_t i = made; i < std::min(kEpisodes, made + kTogether); ++i) {
      const auto& [name, make] = kinds[static_cast<std::size_t>(i) % kinds.size()];
      tensor.clear();
      groups.push_back(make(tensor));
      names.push_back(name + tensor);
    }
    const auto results = verifier.verify(groups);
    for (std::size_t i = 0; i < groups.size(); ++i) {
      const bool honest = fleet.is_honest(groups[i]);
      Count& count = counts[names[i]];
      ++count.made;
      ++(results[i].ok() ? count.equivalent : count.refused);
      const bool right =
          results[i].ok() ? honest : !honest && results[i].status().code() == StatusCode::kInvalidArgument;
      EXPECT_TRUE(right) << names[i] << ", mutant " << made + static_cast<std::int64_t>(i) << ": an honest replay "
                         << (honest ? "gives it" : "does not give it") << "; verification says "
                         << results[i].status().to_string();
      wrong += !right;
    }
  }
  Count sum;
  fmt::print("{:<48} {:>7} {:>8} {:>11}\n", "mutated", "made", "refused", "equivalent");
  for (const auto& [name, count] : counts) {
    fmt::print("{:<48} {:>7} {:>8} {:>11}\n", name, count.made, count.refused, count.equivalent);
    sum.made += count.made, sum.refused += count.refused, sum.equivalent += count.equivalent;
  }
  fmt::print("{:<48} {:>7} {:>8} {:>11}\n", "all", sum.made, sum.refused, sum.equivalent);
  EXPECT_EQ(sum.made, kEpisodes);
  EXPECT_GT(sum.refused, kEpisodes * 9 / 10);
}

}  // namespace
}  // namespace flotilla
