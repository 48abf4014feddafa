#include <gtest/gtest.h>

#include "base/hashing.h"
#include "engine/engine.h"
#include "engine/golden_for_tests.h"
#include "engine/kv_pool.h"
#include "engine/random_model.h"
#include "model/oracle_for_tests.h"
#include "model/published_sizes.h"
#include "model/weights.h"

// What arithmetic 1 gives for models of the sizes that are in use, as digests of tokens and logprobs. A change of any
// result is seen here, and needs a new number.
namespace flotilla {
namespace {

static_assert(kArithmetic == 1, "the digests below are those of arithmetic 1");

// A model's prompt is random ids; then three forks of it decode together, each with its own way of sampling.
std::string digest(Engine& engine, std::int32_t vocabulary, int prompt_tokens, int generated) {
  PhiloxStream random(1234, 5);
  const auto token = [&] { return static_cast<TokenId>(random.below(static_cast<std::uint64_t>(vocabulary))); };
  std::vector<TokenId> prompt;
  for (int i = 0; i < prompt_tokens; ++i) prompt.push_back(token());
  static constexpr SamplingParams kSampling[] = {
      {.temperature = 1}, {.temperature = 0.8f, .top_k = 50, .top_p = 0.9f}, {.temperature = 0}};
  constexpr std::size_t kEpisodes = std::size(kSampling);
  const auto readout = [&](std::int32_t offset, std::size_t episode, std::int32_t position) {
    Readout readout;
    readout.offset = offset;
    readout.sampling = kSampling[episode];
    readout.key = {.seed = 11,
                   .group = 12,
                   .episode = static_cast<std::uint32_t>(episode),
                   .position = static_cast<std::uint32_t>(position)};
    readout.target = 7;
    return readout;
  };

  Sha256 digest;
  const SequenceId root = engine.open().value();
  const Readout first = readout(prompt_tokens - 1, 0, prompt_tokens);
  const Chunk prefill{root, prompt, {&first, 1}};
  update(digest, engine.forward({&prefill, 1}).value()[0]);
  std::vector<SequenceId> ids;
  std::vector<TokenId> last;
  for (std::size_t e = 0; e < kEpisodes; ++e) {
    ids.push_back(engine.fork(root).value());
    last.push_back(token());
  }
  engine.close(root);
  for (int step = 0; step < generated; ++step) {
    std::vector<Chunk> chunks;
    Readout readouts[kEpisodes];
    for (std::size_t e = 0; e < kEpisodes; ++e) {
      readouts[e] = readout(0, e, prompt_tokens + 1 + step);
      chunks.push_back({ids[e], {&last[e], 1}, {&readouts[e], 1}});
    }
    const auto results = engine.forward(chunks).value();
    for (std::size_t e = 0; e < kEpisodes; ++e) {
      update(digest, results[e]);
      last[e] = results[e].token;
    }
  }
  for (const SequenceId id : ids) engine.close(id);
  return digest.finish().to_hex();
}

// The same on every instruction set that this machine has.
void expect_digest(const ModelDescription& description, const GridState& state, int prompt_tokens, int generated,
                   const std::string& expected) {
  for (const Isa isa : supported_isas()) {
    auto engine = Engine::create(description, {.threads = 2, .isa = isa, .kv_blocks = 16}).value();
    ASSERT_TRUE(engine->load(state).ok());
    EXPECT_EQ(digest(*engine, description.vocabulary, prompt_tokens, generated), expected)
        << isa_name(isa) << ". " << kIfADigestChanged;
  }
}

RandomModel random_weights(ModelDescription sizes, const std::string& expected) {
  sizes.context = 256;  // the tables of positions are long, and no result depends on their length
  RandomModel model = random_model(sizes, 2026).value();
  EXPECT_EQ(state_digest(model.description, model.state).to_hex(), expected)
      << "random_model gives other weights than before: no digest of results can be right";
  return model;
}

// Two layers and a small part of the vocabulary: seconds even where every instruction is emulated.
ModelDescription part_of(ModelDescription sizes) {
  sizes.layers = 2;
  sizes.vocabulary = 3000;
  return sizes;
}

TEST(EngineGolden, TwoLayersOfTheSizesOfSmolLm2) {
  const RandomModel model =
      random_weights(part_of(smollm2_135m()), "c1d7bdd143dfda98da9a18b9d057b3c17db129098ed428363f9d7b14988c6f52");
  expect_digest(model.description, model.state, 40, 4,
                "eeaf8a2a6a37d1b98a4c7176df00401d11352a9fb1abd170a88faba503e4bafe");
}

TEST(EngineGolden, TwoLayersOfTheSizesOfQwen25) {
  const RandomModel model =
      random_weights(part_of(qwen25_05b()), "39e05cfb89697c1bd78e84f54e8c3794394684c8e569bed383537acec39bb45e");
  expect_digest(model.description, model.state, 20, 3,
                "dfc0b9dd2562075572a6d6c3f795fddbbe984c25058a28ccd0d460d1a429acfe");
}

class EngineGoldenWhole : public testing::Test {
 protected:
  void SetUp() override {
    if (KvPool::poisons()) GTEST_SKIP() << "takes minutes in a debug or sanitizer build";
  }
};

TEST_F(EngineGoldenWhole, SmolLm2) {
  const RandomModel model =
      random_weights(smollm2_135m(), "f3e0bcb8bd66e1125cafbc463dbbf3561d61838a6153db3e4940bd9cea59cbe2");
  expect_digest(model.description, model.state, 18, 3,
                "bda05eaa656cb93177112377c72e2c1101cd3b8f2c9af93c242e6d1d3c9efb2c");
}

TEST_F(EngineGoldenWhole, Qwen25) {
  const RandomModel model =
      random_weights(qwen25_05b(), "a890e39c33a26fd7ef16668db6d17f3a723a7c3d1ec2fda7c68af1ed2e5cce7f");
  expect_digest(model.description, model.state, 6, 2,
                "8ea8289ed72814e9781995631255556b222d1b52962d958d602e4741349535a9");
}

TEST_F(EngineGoldenWhole, TheRealSmolLm2) {
  FLOTILLA_NEED_ORACLE();
  const auto model = load_model(*packaged_model());
  ASSERT_TRUE(model.ok()) << model.status().to_string();
  const auto grid = make_grid(model->weights);
  ASSERT_TRUE(grid.ok()) << grid.status().to_string();
  const ModelDescription& description = model->weights.description;
  EXPECT_EQ(state_digest(description, *grid).to_hex(),
            "c946efa7f7432bcbe4e30d14c8373a0dd6aa0be2c8026e4d2fcab2ae529d0f8d")
      << "the file or its way to the grid is another";
  expect_digest(description, *grid, 30, 3, "e690e074a069a9307f17483bbdd4b27f9d48c6c82077dd0530514e1678f6c001");
}

}  // namespace
}  // namespace flotilla
