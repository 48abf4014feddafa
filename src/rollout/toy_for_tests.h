#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "engine/random_model.h"
#include "rollout/episode_builder.h"
#include "rollout/sweep.h"
#include "sync/subscriber.h"

namespace flotilla {

// Twenty tokens, so that a random model ends its turns often. "?a" runs past the stop string that it completes.
inline std::shared_ptr<const Tokenizer> toy_tokenizer() {
  TokenizerSpec spec;
  spec.tokens = {"<|endoftext|>",
                 "<|im_start|>",
                 "<|im_end|>",
                 "a",
                 "b",
                 "c",
                 "d",
                 "e",
                 "f",
                 "g",
                 "h",
                 "Ġ",
                 "Ċ",
                 "?",
                 "!",
                 "?a",
                 "<",
                 "|",
                 ">",
                 "_"};
  spec.merges = {{"?", "a"}};
  spec.special = {0, 1, 2};
  spec.eos = 0;
  return Tokenizer::create(std::move(spec)).value();
}
inline constexpr TokenId kToyEos = 0, kToyTurnEnd = 2, kToyA = 3, kToyB = 4, kToyC = 5, kToyAsk = 13, kToyAnswer = 14,
                         kToyAskA = 15;

// "?" and "ab" ask, "!" answers, a "c" in the answer makes it wrong. What comes back depends on task, turn and seed.
class ToyEnvironment : public Environment {
 public:
  EnvironmentLimits limits_{.model_tokens = 24, .turns = 4, .observation_tokens = 20};
  std::string system_ = "abc";
  bool broken_ = false;  // every step fails

  std::string_view name() const override { return "toy"; }
  const Sha256Digest& digest() const override { return digest_; }
  const EnvironmentLimits& limits() const override { return limits_; }
  std::span<const std::string> stop_strings() const override { return stops_; }
  std::uint64_t task_count(Split split) const override { return split == Split::kTrain ? 1000 : 50; }

  Result<Task> task(Split split, std::uint64_t index) const override {
    if (index >= task_count(split)) return invalid_argument("no such task");
    Task task{.split = split, .index = index, .system = system_, .question = "", .private_json = "{}"};
    for (std::uint64_t i = 0; i < index % 37; ++i) task.question += static_cast<char>('a' + (index + i * i) % 8);
    return task;
  }

  Result<Transition> step(const Task& task, std::span<const std::string> actions, std::uint64_t seed) const override {
    if (broken_) return internal_error("the toy is broken");
    const std::string& last = actions.back();
    if (last.find('!') != std::string::npos) return Transition{.done = true, .observation = ""};
    if (last.find('?') == std::string::npos) return Transition{.done = false, .observation = ""};
    std::string observation = "\n<|im_end|>";
    for (std::uint64_t i = 0; i < (seed + task.index) % 7; ++i) observation += "defgh"[(i + actions.size()) % 5];
    return Transition{.done = false, .observation = observation};
  }

  Result<Reward> reward(const Task&, std::span<const std::string> actions) const override {
    const auto asks = [](const std::string& action) { return action.find('?') != std::string::npos; };
    const std::string& last = actions.back();
    const bool right = last.find('!') != std::string::npos && last.find('c') == std::string::npos;
    return Reward{.value = right ? 1.0 : 0.0,
                  .metrics = {{"asked", static_cast<double>(std::ranges::count_if(actions, asks))}}};
  }

  Result<std::vector<std::string>> demonstration(const Task&, std::uint64_t) const override {
    return std::vector<std::string>{"c?", "a!"};
  }

 private:
  Sha256Digest digest_ = sha256("toy");
  std::vector<std::string> stops_ = {"?", "!", "ab"};
};

inline const RandomModel& toy_model() {
  static const RandomModel model = [] {
    ModelDescription sizes;
    sizes.architecture = "llama";
    sizes.layers = 2;
    sizes.hidden = 32;
    sizes.heads = 2;
    sizes.kv_heads = 1;
    sizes.head_dim = 16;
    sizes.ffn = 64;
    sizes.vocabulary = 20;
    sizes.context = 128;
    sizes.norm_epsilon = 1e-5f;
    sizes.rope_theta = 10000;
    sizes.tied_embeddings = false;
    return random_model(sizes, 1).value();
  }();
  return model;
}

// Version 0 is the toy model; from each to the next one integer in a hundred moves by one step.
inline PulledVersion toy_version(std::uint64_t number) {
  GridState state = toy_model().state;
  PhiloxStream random(77, 0);
  for (std::uint64_t version = 0; version < number; ++version) {
    for (GridTensor& tensor : state.tensors) {
      const auto step = [&](auto& q, int limit) {
        if (random.below(100) == 0) q += random.below(2) == 0 ? (q < limit ? 1 : -1) : (q > -limit ? -1 : 1);
      };
      for (auto& q : tensor.q) step(q, kMatrixLimit);
      for (auto& q : tensor.vector_q) step(q, kVectorLimit);
    }
  }
  const Sha256Digest digest = state_digest(toy_model().description, state);
  return {.version = Version(number),
          .state_digest = digest,
          .state = std::make_shared<const GridState>(std::move(state)),
          .bytes = 0,
          .path = ""};
}

// A whole version, as a sweep takes it.
inline NextVersion as_next(const PulledVersion& version) {
  return {.version = version.version,
          .state_digest = version.state_digest,
          .weights = [state = version.state](const TensorVisitor& visit) { return source_of(*state)(visit); },
          .bytes = 0,
          .path = ""};
}

inline std::unique_ptr<Engine> toy_engine(std::int64_t kv_blocks = 1000, int threads = 1, Isa isa = Isa::kAuto) {
  const EngineOptions options{.threads = threads, .isa = isa, .kv_blocks = kv_blocks};
  auto engine = Engine::create(toy_model().description, options).value();
  FLOTILLA_CHECK(engine->load(toy_model().state).ok());
  return engine;
}

// Environment, tokenizer and the rules that tie them to the toy model.
struct Toy {
  ToyEnvironment environment;
  std::shared_ptr<const Tokenizer> tokenizer = toy_tokenizer();
  EpisodeRules rules = make_episode_rules(environment, *tokenizer, toy_model().description).value();

  std::vector<SweepItem> items(std::int64_t count, std::int32_t episodes, std::uint64_t first = 0) const {
    std::vector<SweepItem> items;
    for (std::int64_t i = 0; i < count; ++i) {
      items.push_back({.task = environment.task(Split::kTrain, first + static_cast<std::uint64_t>(i) * 11).value(),
                       .sample_group = 100 + static_cast<std::uint64_t>(i),
                       .episodes = episodes});
    }
    return items;
  }
};

// The episode that its recorded spans make, token by token in a sequence of its own: no batch, no fork, no chunk. The
// version and the context of each token are those of the span that it lies in.
inline Episode plain_replay(Engine& engine, const EpisodeRules& rules, const Task& task, std::uint64_t seed,
                            std::uint64_t sample_group, std::uint32_t index, const SamplingParams& sampling,
                            std::span<const VersionSpan> spans,
                            const std::function<const PulledVersion&(Version)>& version) {
  const auto prompt = episode_prompt(*rules.tokenizer, task).value();
  EpisodeBuilder builder(rules, task, environment_seed(seed, sample_group, index), prompt);
  std::optional<SequenceId> sequence;
  std::size_t span = 0;
  const auto load = [&](Version number) {
    FLOTILLA_CHECK(engine.load(*version(number).state, OpenSequences::kKeep).ok());
  };
  while (!builder.ended()) {
    // A span's version computes from the token before the span on.
    const std::int32_t size = builder.size();
    ReadoutResult result;
    if (!sequence) {
      sequence = engine.open().value();
      load(spans[span].version);
    }
    while (true) {
      const std::int32_t next = engine.length(*sequence);
      if (span + 1 < spans.size() && spans[span + 1].context == SpanContext::kKept &&
          next == spans[span + 1].begin - 1) {
        load(spans[++span].version);
      }
      if (span + 1 < spans.size() && spans[span + 1].context == SpanContext::kNew && size >= spans[span + 1].begin) {
        engine.close(*sequence);
        sequence = engine.open().value();
        load(spans[++span].version);
        continue;
      }
      const Readout readout{.offset = 0,
                            .sampling = sampling,
                            .key = {seed, sample_group, index, static_cast<std::uint32_t>(size)},
                            .target = std::nullopt};
      const Chunk chunk{*sequence, std::span(builder.episode().tokens).subspan(next, 1), {&readout, 1}};
      result = engine.forward({&chunk, 1}).value()[0];
      if (next + 1 == size) break;
    }
    FLOTILLA_CHECK(builder.take(result.token, result.logprob).ok());
  }
  if (sequence) engine.close(*sequence);
  Episode episode = std::move(builder).finish();
  episode.spans.assign(spans.begin(), spans.end());
  return episode;
}

inline bool same_episode(const Episode& a, const Episode& b) {
  const auto same_span = [](const VersionSpan& x, const VersionSpan& y) {
    return x.begin == y.begin && x.end == y.end && x.version == y.version && x.state == y.state &&
           x.context == y.context;
  };
  return a.tokens == b.tokens && a.sources == b.sources && a.logprobs == b.logprobs && a.turns == b.turns &&
         a.end == b.end && a.reward == b.reward && a.metrics == b.metrics &&
         std::ranges::equal(a.spans, b.spans, same_span);
}

}  // namespace flotilla
