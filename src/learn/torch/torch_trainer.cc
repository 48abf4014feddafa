#include "learn/torch/torch_trainer.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include <ATen/Parallel.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include "base/thread_pool.h"
#include "learn/torch/guard.h"
#include "learn/torch/head_loss.h"
#include "learn/torch/packed_batch.h"
#include "learn/torch/parameters.h"
#include "learn/torch/transformer.h"

namespace flotilla {
namespace {

constexpr double kBand = 0.2;  // of PPO's usual ratio clip; reported, never used

// Sums over the tokens of a step; means and shares are formed at its end.
class PolicyMeter {
 public:
  void add(const TokenLoss& loss, const PolicyStepOptions& options, double log_pi, double log_mu, double advantage) {
    ++report_.tokens;
    report_.loss += (loss.policy + loss.kl) / options.denominator;
    if (options.loss.kl > 0) report_.kl += loss.kl / options.loss.kl;
    if (loss.gated) ++(advantage > 0 ? report_.gated_positive : report_.gated_negative);
    report_.past_delta += std::abs(std::exp(log_pi) - std::exp(log_mu)) > options.loss.gate_delta;
    report_.past_band += std::abs(loss.ratio - 1) > kBand;
    report_.ratio_above_2 += loss.ratio > 2;
    report_.ratio_below_half += loss.ratio < 0.5;
    report_.ratio_max = std::max(report_.ratio_max, loss.ratio);
    report_.logprob_difference += std::abs(log_pi - log_mu);
    report_.total_variation += std::abs(loss.ratio - 1) / 2;
    report_.entropy -= log_pi;
  }

  PolicyStepReport finish(std::int64_t computed, double gradient_norm) {
    const double tokens = std::max<double>(1, static_cast<double>(report_.tokens));
    report_.kl /= tokens;
    report_.logprob_difference /= tokens;
    report_.total_variation /= tokens;
    report_.entropy /= tokens;
    report_.computed = computed;
    report_.gradient_norm = gradient_norm;
    return report_;
  }

 private:
  PolicyStepReport report_;
};

class TorchTrainer final : public Trainer {
 public:
  TorchTrainer(const ModelDescription& description, const TrainerOptions& options)
      : description_(description),
        options_(options),
        layout_(description),
        plain_(description, false),
        as_the_fleet_(description, true),
        masters_(allocate()),
        gradient_(allocate()),
        mean_(at::zeros_like(masters_.flat)),
        mean_square_(at::zeros_like(masters_.flat)) {}

  const ModelDescription& description() const override { return description_; }

  Result<PolicyStepReport> policy_step(std::span<const Group* const> groups,
                                       std::span<const std::vector<float>> advantages, const PolicyStepOptions& options,
                                       const AdamWOptions& adamw, const Pause& pause) override {
    std::vector<TrainingSequence> sequences;
    // Without a KL term a token without advantage has no gradient: its forward pass would be for nothing.
    const PackOptions packing{.share_prompt = options_.share_prompt,
                              .mask_truncated = options.mask_truncated,
                              .skip_without_signal = options.loss.kl == 0,
                              .max_tokens = options_.micro_batch_tokens};
    for (std::size_t i = 0; i < groups.size(); ++i) {
      auto packed = pack_group(*groups[i], advantages[i], packing);
      std::move(packed.begin(), packed.end(), std::back_inserter(sequences));
    }
    return guarded("policy step", [&]() -> Result<PolicyStepReport> {
      PolicyMeter meter;
      std::vector<float> reference;
      const auto loss = [&](const PackedTarget& target, float log_pi) {
        const auto index = static_cast<std::size_t>(&target - current_.targets.data());
        const auto version0 = reference.empty() ? std::nullopt : std::optional<double>(reference[index]);
        const TokenLoss token = token_loss(options.loss, log_pi, target.worker_logprob, target.advantage, version0);
        meter.add(token, options, log_pi, target.worker_logprob, target.advantage);
        return token.gradient / options.denominator;
      };
      const auto before_each = [&](const PackedBatch& batch) {
        reference.clear();
        if (options.loss.kl == 0 || !reference_) return;
        const at::Tensor output = transformer().forward(*reference_, batch, nullptr);
        reference = head_logprobs(output, reference_->head, batch.targets, options_.temperature);
      };
      FLOTILLA_ASSIGN_OR_RETURN(const std::int64_t computed,
                                accumulate(sequences, options_.temperature, before_each, loss, pause));
      FLOTILLA_ASSIGN_OR_RETURN(const double norm, update(adamw));
      return meter.finish(computed, norm);
    });
  }

  Result<ImitationReport> imitation_step(std::span<const TrainingSequence> demonstrations, const AdamWOptions& adamw,
                                         const Pause& pause) override {
    return guarded("imitation step", [&]() -> Result<ImitationReport> {
      ImitationReport report;
      for (const TrainingSequence& sequence : demonstrations) report.tokens += sequence.targets.size();
      if (report.tokens == 0) return invalid_argument("a batch of demonstrations without a token to learn");
      const double weight = 1.0 / static_cast<double>(report.tokens);
      const auto loss = [&](const PackedTarget&, float log_pi) {
        report.loss -= log_pi * weight;
        return -weight;
      };
      FLOTILLA_RETURN_IF_ERROR(accumulate(
                                   demonstrations, 1, [](const PackedBatch&) {}, loss, pause)
                                   .status());
      FLOTILLA_ASSIGN_OR_RETURN(report.gradient_norm, update(adamw));
      return report;
    });
  }

  Result<std::vector<std::vector<float>>> logprobs(std::span<const TrainingSequence> sequences) override {
    return guarded("logprobs", [&]() -> Result<std::vector<std::vector<float>>> {
      FLOTILLA_RETURN_IF_ERROR(check(sequences));
      FLOTILLA_RETURN_IF_ERROR(prepare_weights());
      std::vector<std::vector<float>> all(sequences.size());
      for (std::size_t i = 0; i < sequences.size(); ++i) all[i].resize(sequences[i].targets.size());
      for (const MicroBatch& range : micro_batches(sequences, options_.micro_batch_tokens)) {
        const PackedBatch batch = pack_batch(sequences.subspan(range.begin, range.end - range.begin));
        if (batch.targets.empty()) continue;
        const at::Tensor output = transformer().forward(weights(), batch, nullptr);
        const auto values = head_logprobs(output, weights().head, batch.targets, options_.temperature);
        for (std::size_t i = 0; i < values.size(); ++i) {
          all[range.begin + batch.targets[i].sequence][batch.targets[i].index] = values[i];
        }
      }
      return all;
    });
  }

  void set_grid(std::shared_ptr<const GridState> grid) override { grid_ = std::move(grid); }

  Status set_reference(const GridState* version0) override {
    return guarded("reference weights", [&]() -> Status {
      reference_.reset();
      if (!version0) return ok_status();
      reference_ = allocate();
      return fill(*version0, *reference_);
    });
  }

  Status set_masters(const ModelWeights& weights) override {
    for (std::size_t i = 0; i < description_.tensors.size(); ++i) {
      if (static_cast<std::int64_t>(weights.tensors[i].size()) != description_.tensors[i].size()) {
        return invalid_argument("tensor " + description_.tensors[i].name + " has another size than described");
      }
      std::copy(weights.tensors[i].begin(), weights.tensors[i].end(), view(masters_.flat, i).begin());
    }
    return ok_status();
  }

  TrainerState state() override {
    TrainerState state;
    for (std::size_t i = 0; i < description_.tensors.size(); ++i) {
      state.masters.push_back(view(masters_.flat, i));
      state.mean.push_back(view(mean_, i));
      state.mean_square.push_back(view(mean_square_, i));
    }
    return state;
  }

  std::uint64_t optimizer_steps() const override { return optimizer_steps_; }
  void set_optimizer_steps(std::uint64_t steps) override { optimizer_steps_ = steps; }
  void reset_optimizer() override {
    mean_.zero_();
    mean_square_.zero_();
    optimizer_steps_ = 0;
  }

 private:
  ModelTensors allocate() const { return make_tensors(description_, layout_, at::zeros({layout_.size()}, at::kFloat)); }

  std::span<float> view(const at::Tensor& flat, std::size_t tensor) const {
    return {flat.mutable_data_ptr<float>() + layout_.offset(static_cast<TensorIndex>(tensor)),
            static_cast<std::size_t>(description_.tensors[tensor].size())};
  }

  bool grid_forward() const { return options_.grid_forward && grid_ != nullptr; }
  const Transformer& transformer() const { return grid_forward() ? as_the_fleet_ : plain_; }
  const ModelTensors& weights() const { return grid_forward() ? *rounded_ : masters_; }

  Status fill(const GridState& grid, ModelTensors& tensors) const {
    for (std::size_t i = 0; i < description_.tensors.size(); ++i) {
      dequantize(description_.tensors[i], grid.tensors[i], view(tensors.flat, i).data());
    }
    return ok_status();
  }

  // For the grid forward: the masters on the grid, with its sticky scales.
  Status prepare_weights() {
    if (!grid_forward()) return ok_status();
    std::vector<const float*> masters;
    for (std::size_t i = 0; i < description_.tensors.size(); ++i) masters.push_back(view(masters_.flat, i).data());
    FLOTILLA_ASSIGN_OR_RETURN(const GridState now, regrid(description_, *grid_, masters, nullptr));
    if (!rounded_) rounded_ = allocate();
    return fill(now, *rounded_);
  }

  Status check(std::span<const TrainingSequence> sequences) const {
    for (const TrainingSequence& sequence : sequences) {
      std::int32_t begin = sequence.prompt, longest = sequence.prompt;
      for (const std::int32_t end : sequence.branch_ends) {
        longest = std::max(longest, sequence.prompt + end - begin);
        begin = end;
      }
      if (longest > description_.context) {
        return invalid_argument("a sequence of " + std::to_string(longest) + " tokens does not fit the context of " +
                                std::to_string(description_.context));
      }
    }
    return ok_status();
  }

  // The gradient of the loss over all sequences, in gradient_. Returns how many tokens were computed.
  template <typename Before>
  Result<std::int64_t> accumulate(std::span<const TrainingSequence> sequences, double temperature, Before before_each,
                                  const TargetLoss& loss, const Pause& pause) {
    FLOTILLA_RETURN_IF_ERROR(check(sequences));
    FLOTILLA_RETURN_IF_ERROR(prepare_weights());
    gradient_.flat.zero_();
    std::int64_t computed = 0;
    for (const MicroBatch& range : micro_batches(sequences, options_.micro_batch_tokens)) {
      current_ = pack_batch(sequences.subspan(range.begin, range.end - range.begin));
      if (current_.targets.empty()) continue;
      before_each(current_);
      Tape tape;
      const at::Tensor output = transformer().forward(weights(), current_, &tape);
      const at::Tensor d_output =
          head_loss(output, weights().head, current_.targets, temperature, loss, gradient_.head);
      transformer().backward(weights(), current_, d_output, tape, gradient_);
      computed += static_cast<std::int64_t>(current_.tokens.size());
      if (pause) FLOTILLA_RETURN_IF_ERROR(pause());
    }
    return computed;
  }

  // AdamW on the masters; returns the gradient's norm before clipping.
  Result<double> update(const AdamWOptions& adamw) {
    const double norm = at::linalg_vector_norm(gradient_.flat).item<double>();
    if (!std::isfinite(norm)) return data_loss("the gradient is not finite; nothing was changed");
    const double shrink = adamw.clip_norm > 0 && norm > adamw.clip_norm ? norm / adamw.clip_norm : 1;
    ++optimizer_steps_;
    at::_fused_adamw_({masters_.flat}, {gradient_.flat}, {mean_}, {mean_square_}, {},
                      {at::full({}, static_cast<double>(optimizer_steps_), at::kFloat)}, adamw.learning_rate,
                      adamw.beta1, adamw.beta2, adamw.weight_decay, adamw.epsilon, /*amsgrad=*/false,
                      /*maximize=*/false, /*grad_scale=*/at::full({}, shrink, at::kFloat));
    return norm;
  }

  const ModelDescription description_;
  const TrainerOptions options_;
  const ParameterLayout layout_;
  const Transformer plain_, as_the_fleet_;
  ModelTensors masters_, gradient_;
  at::Tensor mean_, mean_square_;
  std::uint64_t optimizer_steps_ = 0;
  std::shared_ptr<const GridState> grid_;
  std::optional<ModelTensors> rounded_;    // the masters on the grid
  std::optional<ModelTensors> reference_;  // version 0
  PackedBatch current_;
};

}  // namespace

Result<std::unique_ptr<Trainer>> make_torch_trainer(const ModelDescription& description,
                                                    const TrainerOptions& options) {
  return guarded("trainer", [&]() -> Result<std::unique_ptr<Trainer>> {
    const int cores = core_count();
    at::set_num_threads(options.threads > 0 ? options.threads : cores);
    return std::unique_ptr<Trainer>(std::make_unique<TorchTrainer>(description, options));
  });
}

}  // namespace flotilla
