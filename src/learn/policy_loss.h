#pragma once

#include <optional>

namespace flotilla {

struct PolicyLossOptions {
  double gate_delta = 0.2;   // probability
  double dual_clip = 20;     // largest weight where the advantage is negative
  double positive_clip = 0;  // largest weight where it is positive; 0: none
  double kl = 0;             // weight of the divergence from version 0
};

// One token's part of the loss, before the division by N.
struct TokenLoss {
  double policy = 0;    // -weight * advantage * log pi; 0 when the gate drops the token
  double kl = 0;        // options.kl times the k3 estimate
  double gradient = 0;  // d(policy + kl) / d(log pi), the weight being constant
  double ratio = 1;     // pi / mu
  bool gated = false;
};

// Binary DPPO with total variation ("Divergence Proximal Policy Optimization", arXiv 2602.04879) and a dual clip. With
// pi and mu the learner's and the worker's probability of the sampled token:
//   the gate drops it when A > 0 and pi - mu > delta, or A < 0 and pi - mu < -delta (the update would push them apart);
//   otherwise L = -stop_gradient(w) * A * log pi with w = pi / mu, capped at dual_clip where A < 0, and at
//   positive_clip, if there is one, where A > 0. The cap limits the weight; only the gate zeroes.
// With `reference` (log-probability under version 0) and options.kl > 0, adds kl * k3, k3 = exp(-x) + x - 1 with
// x = log pi - reference (Schulman, "Approximating KL Divergence"), for dropped tokens too. x is clamped to +-20 and k3
// to 10; there the gradient is 0. Log-ratios are clamped to +-20 before exp, so that every result is finite.
TokenLoss token_loss(const PolicyLossOptions& options, double log_pi, double log_mu, double advantage,
                     std::optional<double> reference = std::nullopt);

}  // namespace flotilla
