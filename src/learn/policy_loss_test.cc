#include "learn/policy_loss.h"

#include <cmath>

#include <gtest/gtest.h>

#include "base/philox.h"

namespace flotilla {
namespace {

struct Row {
  const char* name;
  double log_pi, log_mu, advantage, gradient;
};

// Golden values worked out by hand: exp(0.3) = 0.74082 with the sign of -A, exp(3) = 20.0855, exp(4) = 54.598.
TEST(PolicyLoss, HasTheGradientOfTheGoldenRows) {
  for (const Row& row :
       {Row{"A", -0.10, -0.70, 1, 0}, Row{"B", -2.30, -2.00, -1, 0.74082}, Row{"C", -0.50, -0.10, -0.5, 0},
        Row{"D", -6, -9, 1, -20.0855}, Row{"E", -1.2, -1.2, 0, 0}, Row{"F", -9, -0.05, -1, 0},
        Row{"dual clip", -1, -5, -1, 20}, Row{"uncapped", -2, -6, 1, -54.598}}) {
    const TokenLoss loss = token_loss({}, row.log_pi, row.log_mu, row.advantage);
    EXPECT_NEAR(loss.gradient, row.gradient, 5e-5 * std::max(1.0, std::abs(row.gradient))) << row.name;
  }
}

TEST(PolicyLoss, GateLooksAtProbabilitiesAndAtTheDirectionOfTheUpdate) {
  EXPECT_TRUE(token_loss({}, std::log(0.7), std::log(0.4), 1).gated);
  EXPECT_FALSE(token_loss({}, std::log(0.7), std::log(0.4), -1).gated);
  EXPECT_TRUE(token_loss({}, std::log(0.4), std::log(0.7), -1).gated);
  EXPECT_FALSE(token_loss({}, std::log(0.4), std::log(0.7), 1).gated);
  EXPECT_FALSE(token_loss({}, std::log(0.02), std::log(0.0001), 1).gated)
      << "a large ratio of rare tokens is no reason";
  EXPECT_FALSE(token_loss({}, std::log(0.59), std::log(0.4), 1).gated);
}

TEST(PolicyLoss, PositiveClipCapsOnlyWhenItIsSet) {
  EXPECT_NEAR(token_loss({.positive_clip = 3}, -2, -6, 1).gradient, -3, 1e-12);
  EXPECT_NEAR(token_loss({.positive_clip = 3}, -2.3, -2.0, 1).gradient, -0.74082, 1e-5);
}

TEST(PolicyLoss, K3IsClampedWhereItExplodes) {
  const PolicyLossOptions options{.kl = 1};
  EXPECT_NEAR(token_loss(options, -1, -1, 0, -1).kl, 0, 1e-12);
  EXPECT_NEAR(token_loss(options, -1.2, -1.2, 0, -1.0).kl, std::exp(0.2) - 0.2 - 1, 1e-12);
  const TokenLoss clamped = token_loss(options, -9, -9, 0, -0.05);
  EXPECT_EQ(clamped.kl, 10);
  EXPECT_EQ(clamped.gradient, 0);
  EXPECT_EQ(token_loss({.kl = 0}, -9, -9, 0, -0.05).kl, 0);
}

TEST(PolicyLoss, KlCountsForGatedTokensToo) {
  const TokenLoss loss = token_loss({.kl = 0.5}, -0.10, -0.70, 1, -0.3);
  EXPECT_TRUE(loss.gated);
  EXPECT_EQ(loss.policy, 0);
  EXPECT_NEAR(loss.gradient, 0.5 * (1 - std::exp(-0.2)), 1e-12);
}

TEST(PolicyLoss, StaysFiniteAtTheEdgesOfFloat) {
  for (const double log_pi : {0.0, -1e-8, -80.0, -1e30}) {
    for (const double log_mu : {0.0, -1e-8, -80.0, -1e30}) {
      for (const double advantage : {-1.0, 0.0, 1.0}) {
        const TokenLoss loss = token_loss({.kl = 1e-3}, log_pi, log_mu, advantage, log_mu);
        EXPECT_TRUE(std::isfinite(loss.policy) && std::isfinite(loss.kl) && std::isfinite(loss.gradient));
      }
    }
  }
}

// The gradient against central differences of the loss with the weight held constant.
TEST(PolicyLoss, GradientIsTheDerivativeOfTheLoss) {
  PhiloxStream random(7, 0);
  for (int i = 0; i < 2000; ++i) {
    const PolicyLossOptions options{.kl = i % 2 == 0 ? 0.01 : 0.0};
    const double log_pi = -4 * random.uniform() - 1e-3, log_mu = -4 * random.uniform() - 1e-3;
    const double advantage = 2 * random.uniform() - 1, reference = -4 * random.uniform() - 1e-3;
    const TokenLoss at = token_loss(options, log_pi, log_mu, advantage, reference);
    const double weight = log_pi == 0 ? 0 : at.policy / log_pi;  // -w * A
    const double step = 1e-6;
    const auto kl = [&](double value) { return token_loss(options, value, log_mu, advantage, reference).kl; };
    const double numeric = weight + (kl(log_pi + step) - kl(log_pi - step)) / (2 * step);
    EXPECT_NEAR(at.gradient, numeric, 1e-6) << "case " << i;
  }
}

}  // namespace
}  // namespace flotilla
