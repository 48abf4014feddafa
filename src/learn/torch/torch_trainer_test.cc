#include "learn/torch/torch_trainer.h"

#include <cmath>
#include <numeric>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include "learn/advantages.h"
#include "learn/torch/reference_model_for_tests.h"
#include "learn/torch/tiny_model_for_tests.h"

namespace flotilla {
namespace {

// SGD in disguise would need another optimizer: with beta1 = 0, beta2 = 0 AdamW moves by the gradient's sign only. So
// tests read the gradient from AdamW's first mean, which after one step is (1 - beta1) times the gradient.
constexpr double kBeta1 = 0.5;
AdamWOptions watching() { return {.learning_rate = 1e-9, .beta1 = kBeta1, .clip_norm = 0}; }

std::vector<std::vector<double>> gradient_of(Trainer& trainer) {
  std::vector<std::vector<double>> gradient;
  for (const auto& mean : trainer.state().mean) {
    auto& tensor = gradient.emplace_back();
    for (const float value : mean) tensor.push_back(value / (1 - kBeta1));
  }
  return gradient;
}

double norm(const std::vector<std::vector<double>>& gradient) {
  double sum = 0;
  for (const auto& tensor : gradient) sum = std::inner_product(tensor.begin(), tensor.end(), tensor.begin(), sum);
  return std::sqrt(sum);
}

double distance(const std::vector<std::vector<double>>& a, const std::vector<std::vector<double>>& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    for (std::size_t j = 0; j < a[i].size(); ++j) sum += (a[i][j] - b[i][j]) * (a[i][j] - b[i][j]);
  }
  return std::sqrt(sum);
}

// A group with a prompt of `prompt` tokens and episodes of one or two turns with an observation between.
Group random_group(std::uint64_t seed, std::int32_t vocabulary, int episodes = 5, std::int32_t prompt = 7) {
  PhiloxStream random(seed, 1);
  const auto draw = [&] { return static_cast<TokenId>(random.below(vocabulary)); };
  Group group;
  group.prompt_tokens = prompt;
  std::vector<TokenId> prompt_tokens;
  for (std::int32_t i = 0; i < prompt; ++i) prompt_tokens.push_back(draw());
  for (int e = 0; e < episodes; ++e) {
    Episode& episode = group.episodes.emplace_back();
    const auto add = [&](TokenSource source, std::size_t count) {
      for (std::size_t i = 0; i < count; ++i) {
        episode.tokens.push_back(draw());
        episode.sources.push_back(source);
        episode.logprobs.push_back(source == TokenSource::kModel ? static_cast<float>(-6 * random.uniform()) : 0.0f);
      }
    };
    episode.tokens = prompt_tokens;
    episode.sources.assign(prompt, TokenSource::kPrompt);
    episode.logprobs.assign(prompt, 0.0f);
    add(TokenSource::kModel, 1 + random.below(6));
    if (random.below(3) > 0) {
      add(TokenSource::kEnvironment, 1 + random.below(8));
      add(TokenSource::kModel, 1 + random.below(5));
    }
    episode.reward = static_cast<double>(random.below(3)) / 2;
  }
  return group;
}

std::vector<float> advantages_of(const Group& group) {
  std::vector<double> rewards;
  for (const Episode& episode : group.episodes) rewards.push_back(episode.reward);
  return advantages(rewards);
}

struct Batch {
  std::vector<Group> groups;
  std::vector<const Group*> pointers;
  std::vector<std::vector<float>> advantages;
};

Batch random_batch(std::uint64_t seed, int groups, std::int32_t vocabulary) {
  Batch batch;
  for (int g = 0; g < groups; ++g) batch.groups.push_back(random_group(seed * 100 + g, vocabulary));
  for (const Group& group : batch.groups) {
    batch.pointers.push_back(&group);
    batch.advantages.push_back(advantages_of(group));
  }
  return batch;
}

std::unique_ptr<Trainer> make_trainer(const ModelWeights& weights, TrainerOptions options = {}) {
  if (options.threads == 0) options.threads = 1;  // the models are too small for more
  auto trainer = make_torch_trainer(weights.description, options).value();
  EXPECT_TRUE(trainer->set_masters(weights).ok());
  return trainer;
}

// The loss as the page states it, with autograd: -(1/N) sum of stop_gradient(w) A log pi + kl k3.
std::vector<std::vector<double>> autograd_gradient(const ModelWeights& weights, const Batch& batch,
                                                   const PolicyStepOptions& options, double temperature,
                                                   const ModelWeights* version0) {
  const ReferenceModel model(weights);
  std::optional<ReferenceModel> reference;
  if (version0) reference.emplace(*version0);
  at::Tensor loss = at::zeros({}, at::kDouble);
  for (std::size_t g = 0; g < batch.groups.size(); ++g) {
    for (std::size_t e = 0; e < batch.groups[g].episodes.size(); ++e) {
      const Episode& episode = batch.groups[g].episodes[e];
      const double advantage = batch.advantages[g][e];
      at::Tensor table = model.log_probabilities(episode.tokens);
      at::Tensor reference_table;
      if (reference) reference_table = reference->log_probabilities(episode.tokens).detach();
      if (temperature != 1) {
        table = at::log_softmax(table.div(temperature), -1);
        if (reference) reference_table = at::log_softmax(reference_table.div(temperature), -1);
      }
      for (std::size_t i = 1; i < episode.tokens.size(); ++i) {
        if (episode.sources[i] != TokenSource::kModel) continue;
        const at::Tensor log_pi = table[static_cast<std::int64_t>(i) - 1][episode.tokens[i]];
        const double pi = std::exp(log_pi.item<double>()), mu = std::exp(double{episode.logprobs[i]});
        double weight = pi / mu;
        if (advantage < 0) weight = std::min(weight, options.loss.dual_clip);
        const bool gated = (advantage > 0 && pi - mu > options.loss.gate_delta) ||
                           (advantage < 0 && pi - mu < -options.loss.gate_delta);
        if (!gated) loss = loss.sub(log_pi.mul(weight * advantage));
        if (reference) {
          const at::Tensor x = log_pi.sub(reference_table[static_cast<std::int64_t>(i) - 1][episode.tokens[i]]);
          loss = loss.add(x.neg().exp().add(x).sub(1).mul(options.loss.kl));
        }
      }
    }
  }
  loss.div(options.denominator).backward();
  std::vector<std::vector<double>> gradient;
  for (const at::Tensor& tensor : model.tensors()) {
    const at::Tensor grad = tensor.grad().contiguous();
    gradient.emplace_back(grad.const_data_ptr<double>(), grad.const_data_ptr<double>() + grad.numel());
  }
  return gradient;
}

TEST(TorchTrainer, GradientOfTheLossEqualsAutogradOfTheFormula) {
  for (const bool tied : {true, false}) {
    for (const double temperature : {1.0, 0.7}) {
      const ModelWeights weights = make_tiny_model(3, tied);
      const Batch batch = random_batch(1, 4, weights.description.vocabulary);
      const PolicyStepOptions options{.loss = {.kl = 0}, .denominator = 50};
      auto trainer = make_trainer(weights, {.temperature = static_cast<float>(temperature)});
      const auto expected = autograd_gradient(weights, batch, options, temperature, nullptr);
      const auto report = trainer->policy_step(batch.pointers, batch.advantages, options, watching(), {}).value();
      EXPECT_LT(distance(gradient_of(*trainer), expected), 2e-6 * norm(expected)) << "tied " << tied;
      EXPECT_NEAR(report.gradient_norm, norm(expected), 1e-5 * norm(expected));
      EXPECT_GT(report.gated_positive + report.gated_negative, 0) << "the batch is meant to meet the gate";
    }
  }
}

TEST(TorchTrainer, KlTermPullsTowardsVersionZero) {
  const ModelWeights weights = make_tiny_model(3);
  ModelWeights before = weights;  // near enough that k3 meets no clamp
  for (auto& tensor : before.tensors) {
    for (float& value : tensor) value *= 1.05f;
  }
  const GridState version0 = make_grid(before).value();
  const ModelWeights reference = dequantize(weights.description, version0);
  const Batch batch = random_batch(2, 3, weights.description.vocabulary);
  const PolicyStepOptions options{.loss = {.kl = 0.05}, .denominator = 10};
  auto trainer = make_trainer(weights);
  ASSERT_TRUE(trainer->set_reference(&version0).ok());
  const auto expected = autograd_gradient(weights, batch, options, 1, &reference);
  const auto report = trainer->policy_step(batch.pointers, batch.advantages, options, watching(), {}).value();
  EXPECT_LT(distance(gradient_of(*trainer), expected), 5e-6 * norm(expected));
  EXPECT_GT(report.kl, 0);
}

TEST(TorchTrainer, SharedPromptsGiveTheGradientOfEpisodesAlone) {
  const ModelWeights weights = make_tiny_model(5);
  const Batch batch = random_batch(3, 5, weights.description.vocabulary);
  const PolicyStepOptions options{.loss = {.kl = 0}, .denominator = 10};
  std::vector<std::vector<std::vector<double>>> gradients;
  for (const bool share : {true, false}) {
    for (const int micro_batch : {4096, 64, 16}) {
      auto trainer = make_trainer(weights, {.threads = 2, .micro_batch_tokens = micro_batch, .share_prompt = share});
      ASSERT_TRUE(trainer->policy_step(batch.pointers, batch.advantages, options, watching(), {}).ok());
      gradients.push_back(gradient_of(*trainer));
      EXPECT_LT(distance(gradients.back(), gradients.front()), 1e-6 * norm(gradients.front()));
    }
  }
}

TEST(TorchTrainer, SkippingGroupsWithoutSignalChangesNoGradient) {
  const ModelWeights weights = make_tiny_model(5);
  Batch batch = random_batch(4, 3, weights.description.vocabulary);
  std::fill(batch.advantages[1].begin(), batch.advantages[1].end(), 0.0f);
  Batch without = batch;
  without.pointers.erase(without.pointers.begin() + 1);
  without.advantages.erase(without.advantages.begin() + 1);
  const PolicyStepOptions options{.loss = {.kl = 0}, .denominator = 10};
  auto a = make_trainer(weights), b = make_trainer(weights);
  const auto with_report = a->policy_step(batch.pointers, batch.advantages, options, watching(), {}).value();
  const auto report = b->policy_step(without.pointers, without.advantages, options, watching(), {}).value();
  EXPECT_EQ(with_report.computed, report.computed);
  EXPECT_EQ(gradient_of(*a), gradient_of(*b));
}

TEST(TorchTrainer, ABatchWithoutAnySignalIsAStepWithoutGradient) {
  const ModelWeights weights = make_tiny_model(5);
  Batch batch = random_batch(4, 2, weights.description.vocabulary);
  for (auto& values : batch.advantages) std::fill(values.begin(), values.end(), 0.0f);
  auto trainer = make_trainer(weights);
  const auto report = trainer->policy_step(batch.pointers, batch.advantages, {}, watching(), {}).value();
  EXPECT_EQ(report.gradient_norm, 0);
  EXPECT_EQ(report.tokens, 0);
  EXPECT_EQ(trainer->optimizer_steps(), 1u);
}

TEST(TorchTrainer, LogprobsEqualTheReferenceModel) {
  const ModelWeights weights = make_tiny_model(6);
  const Group group = random_group(9, weights.description.vocabulary);
  const auto sequences = pack_group(group, advantages_of(group), {});
  const auto logprobs = make_trainer(weights)->logprobs(sequences).value();
  const ReferenceModel model(weights);
  std::vector<float> expected;  // in the order of the targets: by row, then by episode
  ASSERT_EQ(sequences.size(), 1u);
  std::int32_t begin = sequences[0].prompt;
  std::map<std::pair<std::int32_t, TokenId>, double> table;
  for (std::size_t e = 0; e < group.episodes.size(); ++e) {
    const Episode& episode = group.episodes[e];
    const at::Tensor log_pi = model.log_probabilities(episode.tokens);
    for (std::int32_t i = group.prompt_tokens; i < static_cast<std::int32_t>(episode.tokens.size()); ++i) {
      const std::int32_t row = i == group.prompt_tokens ? i - 1 : begin + i - 1 - group.prompt_tokens;
      table[{row, episode.tokens[i]}] = log_pi[i - 1][episode.tokens[i]].item<double>();
    }
    begin = sequences[0].branch_ends[e];
  }
  for (std::size_t i = 0; i < sequences[0].targets.size(); ++i) {
    const TrainingTarget& target = sequences[0].targets[i];
    EXPECT_NEAR(logprobs[0][i], (table.at({target.row, target.token})), 1e-5);
  }
}

TEST(TorchTrainer, GridForwardEqualsTheMasterForwardOnFineGridsUpToRounding) {
  const ModelWeights weights = make_tiny_model(7);
  const Group group = random_group(9, weights.description.vocabulary);
  const auto sequences = pack_group(group, advantages_of(group), {});
  const auto master = make_trainer(weights)->logprobs(sequences).value();
  auto trainer = make_trainer(weights, {.grid_forward = true});
  EXPECT_EQ(trainer->logprobs(sequences).value(), master) << "without a grid the masters count";
  trainer->set_grid(std::make_shared<const GridState>(make_grid(weights).value()));
  const auto grid = trainer->logprobs(sequences).value();
  double difference = 0;
  for (std::size_t i = 0; i < grid[0].size(); ++i) difference += std::abs(grid[0][i] - master[0][i]);
  difference /= static_cast<double>(grid[0].size());
  EXPECT_GT(difference, 0);
  EXPECT_LT(difference, 0.1);
}

TEST(TorchTrainer, GradientsPassStraightThroughTheGrid) {
  const ModelWeights weights = make_tiny_model(7);
  const Batch batch = random_batch(5, 3, weights.description.vocabulary);
  const PolicyStepOptions options{.loss = {.kl = 0}, .denominator = 10};
  auto master = make_trainer(weights), grid = make_trainer(weights, {.grid_forward = true});
  grid->set_grid(std::make_shared<const GridState>(make_grid(weights).value()));
  ASSERT_TRUE(master->policy_step(batch.pointers, batch.advantages, options, watching(), {}).ok());
  ASSERT_TRUE(grid->policy_step(batch.pointers, batch.advantages, options, watching(), {}).ok());
  const auto expected = gradient_of(*master);
  EXPECT_GT(distance(gradient_of(*grid), expected), 0);
  EXPECT_LT(distance(gradient_of(*grid), expected), 0.3 * norm(expected));
}

TEST(TorchTrainer, ImitationMovesTheModelTowardsTheDemonstrations) {
  const ModelWeights weights = make_tiny_model(8);
  const Group group = random_group(10, weights.description.vocabulary);
  const auto sequences = pack_group(group, std::vector<float>(group.episodes.size(), 1.0f), {});
  auto trainer = make_trainer(weights);
  const AdamWOptions adamw{.learning_rate = 1e-2};
  const double first = trainer->imitation_step(sequences, adamw, {}).value().loss;
  for (int i = 0; i < 30; ++i) ASSERT_TRUE(trainer->imitation_step(sequences, adamw, {}).ok());
  EXPECT_LT(trainer->imitation_step(sequences, adamw, {}).value().loss, first / 2);
}

TEST(TorchTrainer, ClipsTheGradientByItsNorm) {
  const ModelWeights weights = make_tiny_model(8);
  const Group group = random_group(10, weights.description.vocabulary);
  const auto sequences = pack_group(group, std::vector<float>(group.episodes.size(), 1.0f), {});
  auto free = make_trainer(weights), clipped = make_trainer(weights);
  const double before = free->imitation_step(sequences, watching(), {}).value().gradient_norm;
  AdamWOptions adamw = watching();
  adamw.clip_norm = before / 4;
  EXPECT_NEAR(clipped->imitation_step(sequences, adamw, {}).value().gradient_norm, before, 1e-6 * before);
  EXPECT_NEAR(norm(gradient_of(*clipped)), before / 4, 1e-5 * before);
}

TEST(TorchTrainer, AnErrorBetweenMicroBatchesChangesNothing) {
  const ModelWeights weights = make_tiny_model(8);
  const Batch batch = random_batch(5, 3, weights.description.vocabulary);
  auto trainer = make_trainer(weights, {.micro_batch_tokens = 16});
  int calls = 0;
  const auto stop = [&]() -> Status { return ++calls == 2 ? cancelled("asked to stop") : ok_status(); };
  EXPECT_EQ(trainer->policy_step(batch.pointers, batch.advantages, {}, watching(), stop).status().code(),
            StatusCode::kCancelled);
  EXPECT_EQ(calls, 2);
  EXPECT_EQ(trainer->optimizer_steps(), 0u);
  EXPECT_EQ(norm(gradient_of(*trainer)), 0);
}

TEST(TorchTrainer, RefusesWhatDoesNotFit) {
  const ModelWeights weights = make_tiny_model(8);
  auto trainer = make_trainer(weights);
  TrainingSequence sequence;
  sequence.tokens.assign(weights.description.context + 1, 1);
  sequence.prompt = sequence.size();
  sequence.targets = {{0, 1, 0, 1}};
  EXPECT_EQ(trainer->logprobs({{sequence}}).status().code(), StatusCode::kInvalidArgument);
  sequence.tokens.assign(3, weights.description.vocabulary);
  sequence.prompt = 3;
  EXPECT_EQ(trainer->logprobs({{sequence}}).status().code(), StatusCode::kInternal);
  EXPECT_EQ(trainer->imitation_step({}, {}, {}).status().code(), StatusCode::kInvalidArgument);
}

TEST(TorchTrainer, RefusesToMoveByAGradientThatIsNotFinite) {
  ModelWeights weights = make_tiny_model(8);
  weights.tensors[weights.description.final_norm][0] = std::numeric_limits<float>::infinity();
  const Batch batch = random_batch(5, 1, weights.description.vocabulary);
  auto trainer = make_trainer(weights);
  EXPECT_EQ(trainer->policy_step(batch.pointers, batch.advantages, {}, watching(), {}).status().code(),
            StatusCode::kDataLoss);
  EXPECT_EQ(trainer->optimizer_steps(), 0u);
}

TEST(TorchTrainer, TheSameStepsGiveTheSameMastersBitForBit) {
  const ModelWeights weights = make_tiny_model(8);
  const Batch batch = random_batch(5, 4, weights.description.vocabulary);
  const auto run = [&] {
    auto trainer = make_trainer(weights);
    for (int i = 0; i < 3; ++i) {
      EXPECT_TRUE(trainer->policy_step(batch.pointers, batch.advantages, {}, {.learning_rate = 1e-3}, {}).ok());
    }
    std::vector<std::vector<float>> masters;
    for (const auto& tensor : trainer->state().masters) masters.emplace_back(tensor.begin(), tensor.end());
    return masters;
  };
  EXPECT_EQ(run(), run());
}

}  // namespace
}  // namespace flotilla
