#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>

#include "engine/engine.h"
#include "engine/float_mode.h"
#include "engine/random_model.h"

// The same tokens and logprobs, bit for bit, whatever the machine, the threads, the batch, the cut into calls, the
// sharing.
namespace flotilla {
namespace {

constexpr std::int32_t kVocabulary = 2100;  // two whole chunks and a part that is no multiple of 16

ModelDescription sizes(bool tied) {
  ModelDescription d;
  d.architecture = "llama";
  d.layers = 3;
  d.hidden = 144;  // two groups and a quarter
  d.heads = 6;
  d.kv_heads = 2;
  d.head_dim = 32;
  d.ffn = 208;
  d.vocabulary = kVocabulary;
  d.context = 256;
  d.norm_epsilon = 1e-5f;
  d.rope_theta = 10000;
  d.tied_embeddings = tied;
  return d;
}

const RandomModel& model() {
  static const RandomModel model = random_model(sizes(true), 7).value();
  return model;
}

std::unique_ptr<Engine> make_engine(const EngineOptions& options, const RandomModel& of = model()) {
  auto engine = Engine::create(of.description, options).value();
  EXPECT_TRUE(engine->load(of.state).ok());
  return engine;
}

EngineOptions options(Isa isa, int threads = 1, ActivationWidth width = ActivationWidth::kOne) {
  return {.threads = threads, .isa = isa, .activations = width, .kv_blocks = 512};
}

std::vector<TokenId> prompt(std::uint64_t seed, int length) {
  PhiloxStream random(seed, 99);
  std::vector<TokenId> tokens;
  for (int i = 0; i < length; ++i) tokens.push_back(static_cast<TokenId>(random.below(kVocabulary)));
  return tokens;
}

// What a readout says, as bits.
using Seen = std::vector<std::uint32_t>;

void note(const ReadoutResult& r, Seen* seen) {
  seen->push_back(static_cast<std::uint32_t>(r.token));
  seen->push_back(std::bit_cast<std::uint32_t>(r.logprob));
  seen->push_back(std::bit_cast<std::uint32_t>(r.target_logprob));
  seen->push_back(static_cast<std::uint32_t>(r.most_likely));
}

Readout readout_at(std::int32_t offset, std::uint32_t episode, std::uint32_t position) {
  Readout readout;
  readout.offset = offset;
  readout.sampling = {.temperature = 0.9f};
  readout.key = {.seed = 5, .group = 0x123456789abcdefULL, .episode = episode, .position = position};
  readout.target = 3;
  return readout;
}

// Feeds a whole sequence in pieces of the given sizes (cycled) and reads after every token.
Seen read_in_pieces(Engine& engine, const std::vector<TokenId>& tokens, const std::vector<int>& pieces) {
  const SequenceId id = engine.open().value();
  Seen seen;
  std::size_t at = 0;
  for (std::size_t i = 0; at < tokens.size(); ++i) {
    const std::size_t count =
        std::min<std::size_t>(static_cast<std::size_t>(pieces[i % pieces.size()]), tokens.size() - at);
    std::vector<Readout> readouts;
    for (std::size_t j = 0; j < count; ++j) {
      readouts.push_back(readout_at(static_cast<std::int32_t>(j), 0, static_cast<std::uint32_t>(at + j + 1)));
    }
    const Chunk chunk{id, std::span(tokens).subspan(at, count), readouts};
    const auto results = engine.forward({&chunk, 1}).value();
    for (const ReadoutResult& r : results) note(r, &seen);
    at += count;
  }
  engine.close(id);
  return seen;
}

// Continues a prompt as `episodes` forks that decode together, each from its own random numbers.
std::vector<Seen> decode_forks(Engine& engine, const std::vector<TokenId>& tokens, int episodes, int length) {
  const SequenceId root = engine.open().value();
  std::vector<SequenceId> ids;
  std::vector<TokenId> last;
  std::vector<Seen> seen(static_cast<std::size_t>(episodes));
  const Chunk prefill{root, std::span(tokens).first(tokens.size() - 1), {}};
  EXPECT_TRUE(engine.forward({&prefill, 1}).ok());
  for (int e = 0; e < episodes; ++e) {
    ids.push_back(engine.fork(root).value());
    last.push_back(tokens.back());
  }
  engine.close(root);
  for (int step = 0; step < length; ++step) {
    std::vector<Chunk> chunks;
    std::vector<Readout> readouts(static_cast<std::size_t>(episodes));
    for (std::size_t e = 0; e < ids.size(); ++e) {
      readouts[e] = readout_at(0, static_cast<std::uint32_t>(e), static_cast<std::uint32_t>(engine.length(ids[e]) + 1));
      chunks.push_back({ids[e], {&last[e], 1}, {&readouts[e], 1}});
    }
    const auto results = engine.forward(chunks).value();
    for (std::size_t e = 0; e < ids.size(); ++e) {
      note(results[e], &seen[e]);
      last[e] = results[e].token;
    }
  }
  for (const SequenceId id : ids) engine.close(id);
  return seen;
}

TEST(EngineExactness, EveryIsaAgreesWithTheScalarReferenceInBothWidths) {
  const auto tokens = prompt(1, 77);
  for (const ActivationWidth width : {ActivationWidth::kOne, ActivationWidth::kTwo}) {
    const auto reference = make_engine(options(Isa::kScalar, 1, width));
    const Seen expected = read_in_pieces(*reference, tokens, {77});
    const auto forks = decode_forks(*reference, tokens, 5, 20);
    for (const Isa isa : supported_isas()) {
      const auto engine = make_engine(options(isa, 2, width));
      SCOPED_TRACE(isa_name(isa));
      EXPECT_EQ(read_in_pieces(*engine, tokens, {77}), expected);
      EXPECT_EQ(decode_forks(*engine, tokens, 5, 20), forks);
      EXPECT_EQ(engine->usage().blocks_used, 0);
    }
  }
}

TEST(EngineExactness, TheCallersFloatingPointModeChangesNothingAndComesBack) {
  // As a numerical library may leave it: towards zero, subnormal numbers flushed.
#if defined(__x86_64__)
  constexpr FloatMode::Register kOdd = 0xe040, kRaised = 0x3f;  // the exceptions seen so far live there, too
#elif defined(__aarch64__)
  constexpr FloatMode::Register kOdd = 0x1c00000, kRaised = 0;
#else
  GTEST_SKIP() << "no way to change the mode";
#endif
  const auto tokens = prompt(6, 40);
  const Seen expected = read_in_pieces(*make_engine(options(Isa::kAuto, 2)), tokens, {40});
  const FloatMode::Register before = FloatMode::get();
  const FloatMode::Register odd = before | kOdd;
  FloatMode::set(odd);
  const Seen seen = read_in_pieces(*make_engine(options(Isa::kAuto, 2)), tokens, {40});
  const FloatMode::Register after = FloatMode::get();
  FloatMode::set(before);
  EXPECT_EQ(seen, expected);
  EXPECT_EQ(after & ~kRaised, odd & ~kRaised);
}

TEST(EngineExactness, AnyCutOfASequenceIntoCallsGivesTheSameReadouts) {
  const auto tokens = prompt(2, 120);
  for (const Isa isa : supported_isas()) {
    const auto engine = make_engine(options(isa, 2));
    const Seen expected = read_in_pieces(*engine, tokens, {120});
    for (const std::vector<int>& pieces :
         std::vector<std::vector<int>>{{1}, {15}, {16}, {17}, {3, 31, 1, 16}, {64, 2}}) {
      EXPECT_EQ(read_in_pieces(*engine, tokens, pieces), expected) << isa_name(isa) << " pieces of " << pieces[0];
    }
  }
}

TEST(EngineExactness, ForksThatShareAPromptDecodeAsIfEachWereAlone) {
  for (const int length : {15, 16, 17, 32, 45}) {
    const auto tokens = prompt(3, length);
    for (const Isa isa : supported_isas()) {
      const auto engine = make_engine(options(isa, 2));
      const auto together = decode_forks(*engine, tokens, 8, 40);
      for (std::size_t e = 0; e < together.size(); e += 3) {
        // The episode alone, from a fresh sequence whose prompt and own tokens are computed again at once.
        std::vector<TokenId> all = tokens;
        for (std::size_t i = 0; i + 4 < together[e].size(); i += 4) all.push_back(static_cast<TokenId>(together[e][i]));
        std::vector<Readout> readouts;
        for (std::size_t i = tokens.size() - 1; i < all.size(); ++i) {
          readouts.push_back(readout_at(static_cast<std::int32_t>(i), static_cast<std::uint32_t>(e),
                                        static_cast<std::uint32_t>(i + 1)));
        }
        const SequenceId id = engine->open().value();
        const Chunk chunk{id, all, readouts};
        Seen alone;
        const auto results = engine->forward({&chunk, 1}).value();
        for (const ReadoutResult& r : results) note(r, &alone);
        engine->close(id);
        EXPECT_EQ(alone, together[e]) << "prompt of " << length << ", episode " << e;
      }
    }
  }
}

TEST(EngineExactness, PrefillDecodeAndObservationsMixInOneBatchWithoutEffectOnEachOther) {
  const auto long_one = prompt(4, 200);
  const auto short_one = prompt(5, 33);
  for (const Isa isa : supported_isas()) {
    const auto engine = make_engine(options(isa, 3));
    const Seen expected_long = read_in_pieces(*engine, long_one, {200});
    const Seen expected_short = read_in_pieces(*engine, short_one, {33});
    const SequenceId a = engine->open().value();
    const SequenceId b = engine->open().value();
    Seen seen_long;
    Seen seen_short;
    std::size_t at_a = 0;
    std::size_t at_b = 0;
    for (int step = 0; at_a < long_one.size() || at_b < short_one.size(); ++step) {
      const std::size_t count_a = std::min<std::size_t>(step % 3 == 0 ? 50 : 7, long_one.size() - at_a);
      const std::size_t count_b = std::min<std::size_t>(step % 2 == 0 ? 1 : 9, short_one.size() - at_b);
      std::vector<Readout> ra;
      std::vector<Readout> rb;
      for (std::size_t j = 0; j < count_a; ++j)
        ra.push_back(readout_at(static_cast<std::int32_t>(j), 0, static_cast<std::uint32_t>(at_a + j + 1)));
      for (std::size_t j = 0; j < count_b; ++j)
        rb.push_back(readout_at(static_cast<std::int32_t>(j), 0, static_cast<std::uint32_t>(at_b + j + 1)));
      const std::vector<Chunk> chunks = {{b, std::span(short_one).subspan(at_b, count_b), rb},
                                         {a, std::span(long_one).subspan(at_a, count_a), ra}};
      const auto results = engine->forward(chunks).value();
      ASSERT_EQ(results.size(), count_a + count_b);
      for (std::size_t j = 0; j < count_b; ++j) note(results[j], &seen_short);
      for (std::size_t j = 0; j < count_a; ++j) note(results[count_b + j], &seen_long);
      at_a += count_a;
      at_b += count_b;
    }
    EXPECT_EQ(seen_long, expected_long);
    EXPECT_EQ(seen_short, expected_short);
  }
}

}  // namespace
}  // namespace flotilla
