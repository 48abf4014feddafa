#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "base/status.h"
#include "learn/policy_loss.h"
#include "learn/training_sequence.h"
#include "model/description.h"
#include "model/grid.h"
#include "model/weights.h"

namespace flotilla {

struct TrainerOptions {
  int threads = 0;  // 0: one a core
  bool grid_forward =
      false;              // fake-quantise weights and activations as the fleet runs them, gradients straight through
  float temperature = 1;  // that the workers sampled at
  std::int32_t micro_batch_tokens = 4096;
  bool share_prompt = true;
};

struct AdamWOptions {
  double learning_rate = 1e-6;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 0;
  double clip_norm = 1;  // 0: never
};

struct PolicyStepOptions {
  PolicyLossOptions loss;
  double denominator = 1;  // N: the sum over the batch is divided by it, whatever the gate drops
  bool mask_truncated = false;
};

// What one optimizer step of RL saw. Shares and means are over the model tokens that were computed (`tokens`); groups
// without signal may have been left out of them.
struct PolicyStepReport {
  double loss = 0;                  // policy and KL part, divided by N
  double kl = 0;                    // mean k3 against version 0 a token; 0 when it is not computed
  std::int64_t tokens = 0;          // model tokens
  std::int64_t computed = 0;        // tokens that went through the forward pass
  std::int64_t gated_positive = 0;  // dropped by the gate with A > 0
  std::int64_t gated_negative = 0;  // and with A < 0
  std::int64_t past_delta = 0;      // |pi - mu| > delta, whatever the direction
  std::int64_t past_band = 0;       // ratio outside [0.8, 1.2]
  std::int64_t ratio_above_2 = 0;
  std::int64_t ratio_below_half = 0;
  double ratio_max = 0;
  double logprob_difference = 0;  // mean |log pi - log mu|
  double total_variation = 0;     // mean of |pi / mu - 1| / 2: an estimate from the sampled tokens
  double entropy = 0;             // mean of -log pi of the sampled tokens: an estimate
  double gradient_norm = 0;       // before clipping
};

struct ImitationReport {
  double loss = 0;  // mean of -log pi a target token
  std::int64_t tokens = 0;
  double gradient_norm = 0;
};

// Views of what a trainer has to remember, each in the order of description.tensors.
struct TrainerState {
  std::vector<std::span<float>> masters;
  std::vector<std::span<float>> mean;  // AdamW's
  std::vector<std::span<float>> mean_square;
};

// The optimizer and the model that it moves: fp32 masters, their gradient and AdamW's state. One thread calls. Called
// between micro-batches, `pause` lets the caller do its other duties; an error from it ends the step before the update,
// with masters and optimizer as they were.
class Trainer {
 public:
  using Pause = std::function<Status()>;
  virtual ~Trainer() = default;

  virtual const ModelDescription& description() const = 0;

  // One step of RL on a batch: `advantages[i]` belongs to `groups[i]`. data_loss when loss or gradient is not finite:
  // then nothing was changed.
  virtual Result<PolicyStepReport> policy_step(std::span<const Group* const> groups,
                                               std::span<const std::vector<float>> advantages,
                                               const PolicyStepOptions& options, const AdamWOptions& adamw,
                                               const Pause& pause) = 0;
  // One step of supervised learning: the mean of -log pi over all targets.
  virtual Result<ImitationReport> imitation_step(std::span<const TrainingSequence> demonstrations,
                                                 const AdamWOptions& adamw, const Pause& pause) = 0;

  // log pi of each target at the present masters, at temperature 1 unless options say otherwise, in their order.
  virtual Result<std::vector<std::vector<float>>> logprobs(std::span<const TrainingSequence> sequences) = 0;

  // The grid whose scales the forward pass uses when it is "grid"; null: the masters as they are.
  virtual void set_grid(std::shared_ptr<const GridState> grid) = 0;
  // Version 0, for the KL term; null frees it.
  virtual Status set_reference(const GridState* version0) = 0;

  virtual Status set_masters(const ModelWeights& weights) = 0;
  virtual TrainerState state() = 0;
  // Steps that AdamW's bias correction counts.
  virtual std::uint64_t optimizer_steps() const = 0;
  virtual void set_optimizer_steps(std::uint64_t steps) = 0;
  // Forgets AdamW's state.
  virtual void reset_optimizer() = 0;
};

}  // namespace flotilla
