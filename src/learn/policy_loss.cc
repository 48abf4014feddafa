#include "learn/policy_loss.h"

#include <algorithm>
#include <cmath>

namespace flotilla {
namespace {

constexpr double kLogRatioLimit = 20;
constexpr double kK3Limit = 10;

}  // namespace

TokenLoss token_loss(const PolicyLossOptions& options, double log_pi, double log_mu, double advantage,
                     std::optional<double> reference) {
  TokenLoss loss;
  loss.ratio = std::exp(std::clamp(log_pi - log_mu, -kLogRatioLimit, kLogRatioLimit));
  const double gap = std::exp(log_pi) - std::exp(log_mu);
  loss.gated = (advantage > 0 && gap > options.gate_delta) || (advantage < 0 && gap < -options.gate_delta);
  if (!loss.gated && advantage != 0) {
    double weight = loss.ratio;
    if (advantage < 0) weight = std::min(weight, options.dual_clip);
    if (advantage > 0 && options.positive_clip > 0) weight = std::min(weight, options.positive_clip);
    loss.policy = -weight * advantage * log_pi;
    loss.gradient = -weight * advantage;
  }
  if (reference && options.kl > 0) {
    const double x = log_pi - *reference;
    const double clamped = std::clamp(x, -kLogRatioLimit, kLogRatioLimit);
    const double k3 = std::exp(-clamped) + clamped - 1;
    loss.kl = options.kl * std::min(k3, kK3Limit);
    if (x == clamped && k3 < kK3Limit) loss.gradient += options.kl * (1 - std::exp(-x));
  }
  return loss;
}

}  // namespace flotilla
