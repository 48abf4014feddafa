// The engine against transformers in fp32 on the same grid weights: tests/oracles/engine_oracle.py.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <tuple>

#include "base/files.h"
#include "engine/engine.h"
#include "model/grid.h"
#include "model/oracle_for_tests.h"
#include "model/tokenizer.h"
#include "model/weights.h"

namespace flotilla {
namespace {

namespace fs = std::filesystem;

struct Prompt {
  std::vector<TokenId> tokens;
  std::vector<float> logprobs;
  std::vector<TokenId> most_likely;
};

struct Agreement {
  double mean_difference = 0;  // of logprobs, absolute
  double same_greedy = 0;      // share of positions
  std::int64_t positions = 0;
};

class EngineOracle : public testing::Test {
 protected:
  void SetUp() override { FLOTILLA_NEED_ORACLE(); }

  // Takes the model at `source` onto the grid and asks transformers what it computes with those weights.
  void ask(const fs::path& source) {
    auto model = load_model(source);
    ASSERT_TRUE(model.ok()) << model.status().message();
    description_ = model->weights.description;
    auto grid = make_grid(model->weights);
    ASSERT_TRUE(grid.ok());
    grid_ = std::move(*grid);
    const fs::path folder = folder_.path() / "on-grid";
    ASSERT_TRUE(save_model_folder(folder, dequantize(description_, grid_), *model->tokenizer).ok());
    const fs::path out = folder_.path() / "out.json";
    ASSERT_TRUE(run_python("tests/oracles/engine_oracle.py", folder, out));
    prompts_.clear();
    for (const auto& item : nlohmann::json::parse(*read_text_file(out))) {
      prompts_.push_back({item["tokens"].get<std::vector<TokenId>>(), item["logprobs"].get<std::vector<float>>(),
                          item["most_likely"].get<std::vector<TokenId>>()});
    }
    ASSERT_EQ(prompts_.size(), 50u);
  }

  // Two-byte activations show that the function is the right one; the bound on one byte is what its rounding costs.
  void expect_near(double one_byte_difference, double one_byte_greedy) const {
    for (const auto& [width, difference, greedy] :
         {std::tuple(ActivationWidth::kOne, one_byte_difference, one_byte_greedy),
          std::tuple(ActivationWidth::kTwo, 0.005, 0.99)}) {
      const auto fastest = engine(Isa::kAuto, width);
      const Agreement agreement = compare(*fastest);
      EXPECT_LE(agreement.mean_difference, difference);
      EXPECT_GE(agreement.same_greedy, greedy);

      const auto scalar = engine(Isa::kScalar, width);
      const auto expected = read(*scalar, prompts_[0]);
      const auto results = read(*fastest, prompts_[0]);
      ASSERT_EQ(results.size(), expected.size());
      for (std::size_t i = 0; i < results.size(); ++i) {
        EXPECT_EQ(results[i].target_logprob, expected[i].target_logprob) << "position " << i;
        EXPECT_EQ(results[i].token, expected[i].token) << "position " << i;
      }
    }
  }

  std::unique_ptr<Engine> engine(Isa isa, ActivationWidth width) const {
    EngineOptions options;
    options.isa = isa;
    options.activations = width;
    options.threads = 2;
    options.kv_blocks = 64;
    auto engine = Engine::create(description_, options);
    EXPECT_TRUE(engine.ok()) << engine.status().message();
    EXPECT_TRUE((*engine)->load(grid_).ok());
    return std::move(*engine);
  }

  // Every position of the prompt, teacher-forced.
  static std::vector<ReadoutResult> read(Engine& engine, const Prompt& prompt) {
    std::vector<Readout> readouts(prompt.logprobs.size());
    for (std::size_t i = 0; i < readouts.size(); ++i) {
      readouts[i].offset = static_cast<std::int32_t>(i);
      readouts[i].target = prompt.tokens[i + 1];
    }
    const SequenceId sequence = engine.open().value();
    const Chunk chunk{sequence, prompt.tokens, readouts};
    auto results = engine.forward({&chunk, 1});
    EXPECT_TRUE(results.ok()) << results.status().message();
    engine.close(sequence);
    return std::move(*results);
  }

  Agreement compare(Engine& engine) const {
    Agreement agreement;
    for (const Prompt& prompt : prompts_) {
      const auto results = read(engine, prompt);
      for (std::size_t i = 0; i < results.size(); ++i) {
        agreement.mean_difference += std::abs(results[i].target_logprob - prompt.logprobs[i]);
        agreement.same_greedy += results[i].most_likely == prompt.most_likely[i];
        ++agreement.positions;
      }
    }
    agreement.mean_difference /= static_cast<double>(agreement.positions);
    agreement.same_greedy /= static_cast<double>(agreement.positions);
    fmt::print("{} positions: mean |difference of logprob| {:.5f}, same greedy token {:.2f} %\n", agreement.positions,
               agreement.mean_difference, 100 * agreement.same_greedy);
    return agreement;
  }

  TemporaryFolder folder_;
  ModelDescription description_;
  GridState grid_;
  std::vector<Prompt> prompts_;
};

TEST_F(EngineOracle, BothActivationWidthsAreNearTransformersAndTheScalarReferenceHasTheSameBits) {
  ASSERT_NO_FATAL_FAILURE(ask(packaged_model().value()));
  expect_near(0.12, 0.93);
}

// Biases, a rotation of base 1e6, rows of the embedding without a token, tied and not: with random weights.
TEST_F(EngineOracle, Qwen2OfTransformersAndGgufIsNearTransformers) {
  const fs::path models = folder_.path() / "models";
  fs::create_directory(models);
  ASSERT_TRUE(run_python("tests/oracles/qwen2_oracle.py", "models", models));
  for (const char* name : {"tied", "untied.gguf"}) {
    SCOPED_TRACE(name);
    ASSERT_NO_FATAL_FAILURE(ask(models / name));
    EXPECT_TRUE(description_.blocks[0].q_bias.has_value());
    expect_near(0.12, 0.93);
  }
}

}  // namespace
}  // namespace flotilla
