#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "base/hashing.h"
#include "engine/engine.h"
#include "engine/golden_for_tests.h"
#include "engine/random_model.h"

// Episodes of one prompt, generated on every instruction set, with every number of threads, and in every way of
// arranging the same work: all of them give one digest, which is in this file.
namespace flotilla {
namespace {

constexpr std::size_t kEpisodes = 3;
constexpr std::size_t kPrompt = 29;    // a block and a part
constexpr std::size_t kGenerated = 6;  // past the end of the second block
constexpr char kDigest[] = "b9d584c753d08b0beb6b3684f95bb07c6c674f04ee9cc37df233a340f71e33de";

ModelDescription sizes() {
  ModelDescription d;
  d.architecture = "qwen2";
  d.layers = 2;
  d.hidden = 80;  // a group of activations and a quarter
  d.heads = 5;
  d.kv_heads = 1;
  d.head_dim = 32;
  d.ffn = 112;
  d.vocabulary = 1100;  // a whole chunk and a part that is no multiple of 16
  d.context = 128;
  d.norm_epsilon = 1e-6f;
  d.rope_theta = 10000;
  d.tied_embeddings = true;
  return d;
}

const RandomModel& model() {
  static const RandomModel model = random_model(sizes(), 31).value();
  return model;
}

// Ways to arrange the work.
struct Arrangement {
  std::size_t together = 1;  // episodes that decode in one batch
  bool visitor = false;      // another sequence is computed in the same calls, some tokens at a time
  bool fork = false;         // the prompt is computed once and its KV shared
  bool preempt = false;      // now and then an episode is closed, and opened again and computed anew
  bool scattered = false;    // the blocks of a sequence lie all over the pool

  std::string text() const {
    return std::to_string(together) + " together" + (visitor ? ", a visitor" : "") + (fork ? ", forked" : "") +
           (preempt ? ", preempted" : "") + (scattered ? ", scattered" : "");
  }
};

std::vector<Arrangement> arrangements() {
  std::vector<Arrangement> all;
  for (const auto& [together, visitor] : {std::pair(1, false), std::pair(2, true), std::pair(3, false)}) {
    for (const bool fork : {false, true}) {
      for (const bool preempt : {false, true}) {
        for (const bool scattered : {false, true}) {
          all.push_back({static_cast<std::size_t>(together), visitor, fork, preempt, scattered});
        }
      }
    }
  }
  return all;
}

std::vector<TokenId> random_tokens(std::uint64_t stream, std::size_t count) {
  PhiloxStream random(77, stream);
  std::vector<TokenId> tokens;
  for (std::size_t i = 0; i < count; ++i) {
    tokens.push_back(static_cast<TokenId>(random.below(static_cast<std::uint64_t>(sizes().vocabulary))));
  }
  return tokens;
}

void append(Engine& engine, SequenceId id, std::span<const TokenId> tokens) {
  const Chunk chunk{id, tokens, {}};
  ASSERT_TRUE(engine.forward({&chunk, 1}).ok());
}

// Takes half of the blocks, no two of them neighbours, and leaves the others to be taken in no order.
std::vector<SequenceId> scatter(Engine& engine) {
  std::vector<SequenceId> all;
  const TokenId token = 1;
  while (engine.usage().blocks_used < engine.usage().blocks_total) {
    all.push_back(engine.open().value());
    append(engine, all.back(), {&token, 1});
  }
  std::vector<SequenceId> freed, held;
  for (std::size_t i = 0; i < all.size(); ++i) (i % 2 == 0 ? freed : held).push_back(all[i]);
  PhiloxStream random(5, 5);
  shuffle(std::span(freed), random);
  for (const SequenceId id : freed) engine.close(id);
  return held;
}

class Generation {
 public:
  Generation(Engine& engine, const Arrangement& arrangement) : engine_(engine), arrangement_(arrangement) {}

  // Of everything that was read, episode by episode.
  std::string digest() {
    const std::vector<SequenceId> held = arrangement_.scattered ? scatter(engine_) : std::vector<SequenceId>();
    for (std::size_t begin = 0; begin < kEpisodes; begin += arrangement_.together) {
      generate(begin, std::min(begin + arrangement_.together, kEpisodes));
    }
    for (const SequenceId id : held) engine_.close(id);
    Sha256 digest;
    for (const auto& results : results_) {
      EXPECT_EQ(results.size(), kGenerated);
      for (const ReadoutResult& result : results) update(digest, result);
    }
    return digest.finish().to_hex();
  }

 private:
  // Episodes [begin, end).
  void generate(std::size_t begin, std::size_t end) {
    const std::vector<TokenId> prompt = random_tokens(1, kPrompt);
    const std::vector<TokenId> foreign = random_tokens(2, 3 * kGenerated);
    const SequenceId root = engine_.open().value();
    const SequenceId visitor = engine_.open().value();
    if (arrangement_.fork) append(engine_, root, std::span(prompt).first(prompt.size() - 1));
    std::vector<SequenceId> ids;
    std::vector<std::vector<TokenId>> tokens(end - begin, prompt);
    for (std::size_t i = begin; i < end; ++i) ids.push_back(engine_.fork(root).value());
    engine_.close(root);
    for (std::size_t step = 0; step < kGenerated; ++step) {
      std::vector<Chunk> chunks;
      std::vector<Readout> readouts(ids.size());
      for (std::size_t i = 0; i < ids.size(); ++i) {
        if (arrangement_.preempt && step % 5 == begin + i) {
          engine_.close(ids[i]);
          ids[i] = engine_.open().value();
        }
        const auto fresh = std::span(tokens[i]).subspan(static_cast<std::size_t>(engine_.length(ids[i])));
        readouts[i] = readout(begin + i, static_cast<std::int32_t>(fresh.size() - 1), tokens[i].size());
        chunks.push_back({ids[i], fresh, {&readouts[i], 1}});
      }
      if (arrangement_.visitor) {
        const auto done = static_cast<std::size_t>(engine_.length(visitor));
        chunks.insert(chunks.begin() + 1, {visitor, std::span(foreign).subspan(done, 3), {}});
      }
      const auto results = engine_.forward(chunks).value();
      for (std::size_t i = 0; i < ids.size(); ++i) {
        results_[begin + i].push_back(results[i]);
        tokens[i].push_back(results[i].token);
      }
    }
    for (const SequenceId id : ids) engine_.close(id);
    engine_.close(visitor);
  }

  static Readout readout(std::size_t episode, std::int32_t offset, std::size_t position) {
    static constexpr SamplingParams kSampling[kEpisodes] = {
        {.temperature = 0.7f}, {.temperature = 1.2f, .top_k = 40, .top_p = 0.8f}, {.temperature = 0}};
    Readout readout;
    readout.offset = offset;
    readout.sampling = kSampling[episode];
    readout.key = {.seed = 9,
                   .group = 0xfedcba9876543210ULL,
                   .episode = static_cast<std::uint32_t>(episode),
                   .position = static_cast<std::uint32_t>(position)};
    readout.target = static_cast<TokenId>(position);
    return readout;
  }

  Engine& engine_;
  const Arrangement arrangement_;
  std::vector<ReadoutResult> results_[kEpisodes];
};

TEST(EngineMatrix, EveryIsaEveryNumberOfThreadsAndEveryArrangementGiveOneDigest) {
  for (const Isa isa : supported_isas()) {
    for (const int threads : {1, 2, 3, 8}) {
      for (const Arrangement& arrangement : arrangements()) {
        SCOPED_TRACE(std::string(isa_name(isa)) + ", " + std::to_string(threads) + " threads, " + arrangement.text());
        // A new engine begins with all of its threads, and tries fewer between passes.
        auto engine = Engine::create(model().description, {.threads = threads, .isa = isa, .kv_blocks = 48}).value();
        ASSERT_TRUE(engine->load(model().state).ok());
        ASSERT_EQ(Generation(*engine, arrangement).digest(), kDigest) << kIfADigestChanged;
        ASSERT_EQ(engine->usage().blocks_used, 0);
      }
    }
  }
}

}  // namespace
}  // namespace flotilla
