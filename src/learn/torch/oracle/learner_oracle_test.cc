// The learner against transformers, which we did not write: tests/oracles/learner_oracle.py.
#include <cmath>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "base/files.h"
#include "learn/torch/torch_trainer.h"
#include "model/oracle_for_tests.h"
#include "model/safetensors.h"
#include "model/test_models.h"

namespace flotilla {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

class LearnerOracle : public testing::Test {
 protected:
  void SetUp() override { FLOTILLA_NEED_ORACLE(); }

  // Runs the oracle on episodes (all tokens and where the prompt ends); returns the path of what it wrote.
  fs::path ask(std::string_view command, const fs::path& model, const json& episodes) const {
    const fs::path in = folder_.path() / "in.json", out = folder_.path() / "out";
    EXPECT_TRUE(write_file_atomically(in, episodes.dump()).ok());
    EXPECT_TRUE(run_python("tests/oracles/learner_oracle.py", command, model, in, out));
    return out;
  }

  TemporaryFolder folder_;
};

// One prompt and branches of different lengths, all of whose tokens are targets.
struct Episodes {
  TrainingSequence sequence;
  json list = json::array();                               // what the oracle reads
  std::vector<std::pair<std::size_t, std::size_t>> where;  // of each target: episode, and index behind the prompt
};

Episodes make_episodes(std::vector<std::vector<TokenId>> branches, const std::vector<TokenId>& prompt) {
  Episodes episodes;
  episodes.sequence.tokens = prompt;
  episodes.sequence.prompt = static_cast<std::int32_t>(prompt.size());
  struct Entry {
    TrainingTarget target;
    std::pair<std::size_t, std::size_t> where;
  };
  std::vector<Entry> entries;
  for (std::size_t e = 0; e < branches.size(); ++e) {
    const std::vector<TokenId>& branch = branches[e];
    const std::int32_t begin = episodes.sequence.size();
    episodes.sequence.tokens.insert(episodes.sequence.tokens.end(), branch.begin(), branch.end() - 1);
    episodes.sequence.branch_ends.push_back(episodes.sequence.size());
    for (std::size_t i = 0; i < branch.size(); ++i) {
      const std::int32_t row = i == 0 ? episodes.sequence.prompt - 1 : begin + static_cast<std::int32_t>(i) - 1;
      entries.push_back({{row, branch[i], 0, 1}, {e, i}});
    }
    std::vector<TokenId> whole = prompt;
    whole.insert(whole.end(), branch.begin(), branch.end());
    episodes.list.push_back({{"tokens", whole}, {"prompt", prompt.size()}});
  }
  std::stable_sort(entries.begin(), entries.end(),
                   [](const Entry& a, const Entry& b) { return a.target.row < b.target.row; });
  for (const Entry& entry : entries) {
    episodes.sequence.targets.push_back(entry.target);
    episodes.where.push_back(entry.where);
  }
  return episodes;
}

TEST_F(LearnerOracle, LogprobsOfTheRealModelEqualTransformers) {
  const Model model = load_model(packaged_model().value()).value();
  const std::string_view texts[] = {
      "<search>large carnivorous feline of Africa</search>\n<information>\nlion: large gregarious predatory feline of "
      "Africa and India having a tawny coat with a shaggy mane in the male\n</information>\n<answer>lion</answer>",
      "Paris is the capital of France. The river that flows through it is the Seine, and",
      "def fibonacci(n):\n    return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)\n", "x"};
  std::vector<std::vector<TokenId>> branches;
  for (const std::string_view text : texts) branches.push_back(model.tokenizer->encode(text));
  const Episodes episodes = make_episodes(
      branches,
      model.tokenizer->encode("<|im_start|>user\nWhich animal is it?<|im_end|>\n<|im_start|>assistant\n", true));
  auto trainer = make_torch_trainer(model.weights.description, {}).value();
  ASSERT_TRUE(trainer->set_masters(model.weights).ok());
  const auto ours = trainer->logprobs(std::span(&episodes.sequence, 1));
  ASSERT_TRUE(ours.ok()) << ours.status().to_string();
  // The folder, because transformers takes a minute to read the GGUF file; that both are one model is tested elsewhere.
  const fs::path folder = folder_.path() / "model";
  ASSERT_TRUE(save_model_folder(folder, model.weights, *model.tokenizer).ok());
  const json theirs = json::parse(read_text_file(ask("logprobs", folder, episodes.list)).value());
  double largest = 0;
  for (std::size_t i = 0; i < episodes.where.size(); ++i) {
    const auto [episode, index] = episodes.where[i];
    largest = std::max(largest, std::abs((*ours)[0][i] - theirs[episode][index].get<double>()));
  }
  EXPECT_GT(episodes.where.size(), 80u);
  EXPECT_LT(largest, 1e-4);
  RecordProperty("largest_difference", fmt::format("{:.2e}", largest));
}

TEST_F(LearnerOracle, GradientOfATinyModelEqualsAutogradOfTransformers) {
  const std::pair<bool, const char*> models[] = {{true, "llama"}, {false, "llama"}, {true, "qwen2"}};
  for (const auto& [tied, architecture] : models) {
    const ModelWeights weights = tiny_weights(tiny_description(tied, architecture));
    const fs::path folder = folder_.path() / fmt::format("{}-{}", architecture, tied);
    ASSERT_TRUE(save_model_folder(folder, weights, *Tokenizer::create(tiny_tokenizer_spec()).value()).ok());
    PhiloxStream random(3, 0);
    const auto draw = [&](std::size_t count) {
      std::vector<TokenId> tokens(count);
      for (TokenId& token : tokens) token = static_cast<TokenId>(random.below(weights.description.vocabulary));
      return tokens;
    };
    const Episodes episodes = make_episodes({draw(9), draw(1), draw(17), draw(4)}, draw(11));
    auto trainer = make_torch_trainer(weights.description, {.threads = 1}).value();
    ASSERT_TRUE(trainer->set_masters(weights).ok());
    // AdamW's first mean after one step is half the gradient.
    ASSERT_TRUE(trainer->imitation_step(std::span(&episodes.sequence, 1), {.beta1 = 0.5, .clip_norm = 0}, {}).ok());
    const auto state = trainer->state();
    const SafetensorsFile theirs = SafetensorsFile::open(ask("gradient", folder, episodes.list)).value();
    double difference = 0, norm = 0;
    for (std::size_t i = 0; i < state.mean.size(); ++i) {
      const TensorView* tensor = theirs.find(weights.description.tensors[i].name);
      ASSERT_NE(tensor, nullptr) << weights.description.tensors[i].name;
      const std::vector<float> expected = tensor->copy<float>();
      ASSERT_EQ(expected.size(), state.mean[i].size());
      for (std::size_t j = 0; j < expected.size(); ++j) {
        const double delta = 2 * state.mean[i][j] - expected[j];
        difference += delta * delta;
        norm += double{expected[j]} * expected[j];
      }
    }
    EXPECT_GT(norm, 0);
    EXPECT_LT(std::sqrt(difference), 1e-5 * std::sqrt(norm)) << architecture << (tied ? " tied" : "");
  }
}

}  // namespace
}  // namespace flotilla
