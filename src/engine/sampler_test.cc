#include "engine/sampler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/philox.h"

namespace flotilla {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

std::vector<float> random_logits(std::int64_t vocabulary, std::uint64_t seed, double spread) {
  PhiloxStream random(seed, 0);
  std::vector<float> logits(static_cast<std::size_t>(padded_vocabulary(vocabulary)));
  for (std::int64_t i = 0; i < vocabulary; ++i) {
    logits[static_cast<std::size_t>(i)] = static_cast<float>((random.uniform() - 0.5) * 2 * spread);
  }
  return logits;
}

ReadoutResult read(std::vector<float> logits, std::int64_t vocabulary, const Readout& readout) {
  SamplerScratch scratch;
  ReadoutResult result;
  EXPECT_TRUE(read_distribution(scalar_kernels(false), logits.data(), vocabulary, readout, scratch, &result));
  return result;
}

float target_logprob(const std::vector<float>& logits, std::int64_t vocabulary, SamplingParams sampling,
                     TokenId target) {
  Readout readout;
  readout.sampling = sampling;
  readout.target = target;
  return read(logits, vocabulary, readout).target_logprob;
}

// log softmax in double, over the tokens that `kept` names.
double exact_logprob(const std::vector<float>& logits, const std::vector<TokenId>& kept, double temperature,
                     TokenId token) {
  double maximum = -kInfinity;
  for (const TokenId i : kept) maximum = std::max(maximum, static_cast<double>(logits[static_cast<std::size_t>(i)]));
  double sum = 0;
  for (const TokenId i : kept) sum += std::exp((logits[static_cast<std::size_t>(i)] - maximum) / temperature);
  return (logits[static_cast<std::size_t>(token)] - maximum) / temperature - std::log(sum);
}

std::vector<TokenId> all_tokens(std::int64_t vocabulary) {
  std::vector<TokenId> tokens(static_cast<std::size_t>(vocabulary));
  std::iota(tokens.begin(), tokens.end(), 0);
  return tokens;
}

TEST(Sampler, ProbabilitiesSumToOneAtEveryTemperature) {
  constexpr std::int64_t kVocabulary = 1201;
  const auto logits = random_logits(kVocabulary, 1, 6);
  for (const float temperature : {0.6f, 1.0f, 1.3f}) {
    double sum = 0;
    for (TokenId token = 0; token < kVocabulary; ++token) {
      const float logprob = target_logprob(logits, kVocabulary, {.temperature = temperature}, token);
      sum += std::exp(static_cast<double>(logprob));
      EXPECT_NEAR(logprob, exact_logprob(logits, all_tokens(kVocabulary), static_cast<double>(temperature), token),
                  3e-6);
    }
    EXPECT_NEAR(sum, 1.0, 1e-6) << temperature;
  }
}

TEST(Sampler, TheSampledTokensLogprobIsThatOfTheSameTokenAsTarget) {
  constexpr std::int64_t kVocabulary = 1100;
  const auto logits = random_logits(kVocabulary, 2, 4);
  for (std::uint32_t position = 0; position < 50; ++position) {
    Readout readout;
    readout.sampling = {
        .temperature = 0.7f, .top_k = position % 2 == 0 ? 0 : 40, .top_p = position % 3 == 0 ? 0.8f : 1.0f};
    readout.key.position = position;
    const ReadoutResult first = read(logits, kVocabulary, readout);
    EXPECT_EQ(target_logprob(logits, kVocabulary, readout.sampling, first.token), first.logprob);
    EXPECT_EQ(read(logits, kVocabulary, readout).token, first.token);
  }
}

TEST(Sampler, FrequenciesFollowTheProbabilities) {
  // 20 tokens, 40,000 draws with fixed keys: the chi-square statistic of 19 degrees exceeds 43.8 once in a thousand
  // times.
  constexpr std::int64_t kVocabulary = 20;
  constexpr int kDraws = 40000;
  const auto logits = random_logits(kVocabulary, 3, 1.5);
  for (const float temperature : {0.6f, 1.0f, 1.3f}) {
    std::vector<int> counts(kVocabulary);
    for (std::uint32_t draw = 0; draw < kDraws; ++draw) {
      Readout readout;
      readout.sampling.temperature = temperature;
      readout.key = {.seed = 42, .group = 7, .episode = draw % 8, .position = draw / 8};
      ++counts[static_cast<std::size_t>(read(logits, kVocabulary, readout).token)];
    }
    double statistic = 0;
    for (TokenId token = 0; token < kVocabulary; ++token) {
      const double expected =
          kDraws * std::exp(exact_logprob(logits, all_tokens(kVocabulary), static_cast<double>(temperature), token));
      statistic += std::pow(counts[static_cast<std::size_t>(token)] - expected, 2) / expected;
    }
    EXPECT_LT(statistic, 43.8) << temperature;
  }
}

TEST(Sampler, TemperatureZeroTakesTheMostLikelyTokenWithItsLogprobAtTemperatureOne) {
  constexpr std::int64_t kVocabulary = 2000;
  auto logits = random_logits(kVocabulary, 4, 3);
  logits[1500] = 9.0f;
  Readout readout;
  readout.sampling = {.temperature = 0, .top_k = 5, .top_p = 0.5f};
  readout.target = 17;
  const ReadoutResult result = read(logits, kVocabulary, readout);
  EXPECT_EQ(result.token, 1500);
  EXPECT_EQ(result.most_likely, 1500);
  EXPECT_EQ(result.logprob, target_logprob(logits, kVocabulary, {}, 1500));
  EXPECT_EQ(result.target_logprob, target_logprob(logits, kVocabulary, {}, 17));
}

TEST(Sampler, TiesGoToTheLowestId) {
  std::vector<float> logits(static_cast<std::size_t>(padded_vocabulary(1030)), 0.0f);
  for (const std::size_t token : {5u, 900u, 1025u}) logits[token] = 2.0f;
  Readout readout;
  EXPECT_EQ(read(logits, 1030, readout).most_likely, 5);
  // Top-k of 2 keeps 5 and 900 among three equals.
  EXPECT_NEAR(target_logprob(logits, 1030, {.top_k = 2}, 5), std::log(0.5), 1e-6);
  EXPECT_NEAR(target_logprob(logits, 1030, {.top_k = 2}, 900), std::log(0.5), 1e-6);
  EXPECT_EQ(target_logprob(logits, 1030, {.top_k = 2}, 1025), -kInfinity);
}

TEST(Sampler, TopKKeepsTheLikeliestAndRenormalises) {
  constexpr std::int64_t kVocabulary = 1500;
  const auto logits = random_logits(kVocabulary, 5, 3);
  auto order = all_tokens(kVocabulary);
  std::sort(order.begin(), order.end(), [&](TokenId a, TokenId b) {
    return logits[static_cast<std::size_t>(a)] > logits[static_cast<std::size_t>(b)];
  });
  for (const int k : {1, 2, 50, 1499, 1500, 9999}) {
    const std::size_t n = std::min<std::size_t>(static_cast<std::size_t>(k), order.size());
    const std::vector<TokenId> kept(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(n));
    const SamplingParams sampling{.temperature = 0.8f, .top_k = k};
    EXPECT_NEAR(target_logprob(logits, kVocabulary, sampling, kept.back()),
                exact_logprob(logits, kept, 0.8f, kept.back()), 3e-6);
    if (n < order.size()) {
      EXPECT_EQ(target_logprob(logits, kVocabulary, sampling, order[n]), -kInfinity);
    }
    for (std::uint32_t position = 0; position < 20; ++position) {
      Readout readout;
      readout.sampling = sampling;
      readout.key.position = position;
      EXPECT_THAT(kept, testing::Contains(read(logits, kVocabulary, readout).token));
    }
  }
}

TEST(Sampler, TopPKeepsTheSmallestSetThatReachesP) {
  // Probabilities 0.4, 0.3, 0.2, 0.1 at ids 3, 1, 0, 2.
  std::vector<float> logits(16);
  logits[0] = std::log(0.2f);
  logits[1] = std::log(0.3f);
  logits[2] = std::log(0.1f);
  logits[3] = std::log(0.4f);
  const auto kept = [&](SamplingParams sampling) {
    std::vector<TokenId> tokens;
    for (TokenId token = 0; token < 4; ++token) {
      if (target_logprob(logits, 4, sampling, token) > -kInfinity) tokens.push_back(token);
    }
    return tokens;
  };
  EXPECT_THAT(kept({.top_p = 1e-6f}), testing::ElementsAre(3));
  EXPECT_THAT(kept({.top_p = 0.39f}), testing::ElementsAre(3));
  EXPECT_THAT(kept({.top_p = 0.6f}), testing::ElementsAre(1, 3));
  EXPECT_THAT(kept({.top_p = 0.85f}), testing::ElementsAre(0, 1, 3));
  EXPECT_THAT(kept({.top_p = 0.95f}), testing::ElementsAre(0, 1, 2, 3));
  EXPECT_NEAR(target_logprob(logits, 4, {.top_p = 0.6f}, 1), std::log(3.0 / 7.0), 1e-6);
  // Within the top 3, of which the first two hold 7/9.
  EXPECT_THAT(kept({.top_k = 3, .top_p = 0.75f}), testing::ElementsAre(1, 3));
  // At a low temperature the first alone reaches it.
  EXPECT_THAT(kept({.temperature = 0.1f, .top_p = 0.6f}), testing::ElementsAre(3));
}

// What top-k and top-p keep and how likely each of it is, from the definition, in long double.
struct Distribution {
  std::vector<TokenId> kept;  // falling
  std::vector<long double> p;
};

Distribution distribution_by_definition(const std::vector<float>& logits, std::int64_t vocabulary,
                                        const SamplingParams& sampling) {
  Distribution d{all_tokens(vocabulary), {}};
  std::stable_sort(d.kept.begin(), d.kept.end(), [&](TokenId a, TokenId b) {
    return logits[static_cast<std::size_t>(a)] > logits[static_cast<std::size_t>(b)];
  });
  if (sampling.top_k > 0 && sampling.top_k < vocabulary) d.kept.resize(static_cast<std::size_t>(sampling.top_k));
  const long double largest = logits[static_cast<std::size_t>(d.kept.front())];
  for (const TokenId token : d.kept) {
    d.p.push_back(std::exp((logits[static_cast<std::size_t>(token)] - largest) / sampling.temperature));
  }
  const auto normalise = [&] {
    const long double sum = std::accumulate(d.p.begin(), d.p.end(), 0.0L);
    for (long double& p : d.p) p /= sum;
  };
  normalise();
  if (sampling.top_p < 1) {
    std::size_t kept = 0;
    for (long double sum = 0; kept < d.p.size() && (kept == 0 || sum < sampling.top_p); ++kept) sum += d.p[kept];
    d.kept.resize(kept);
    d.p.resize(kept);
    normalise();
  }
  return d;
}

TEST(Sampler, TheEdgesOfAllParametersTogetherAgreeWithTheDefinition) {
  constexpr std::int64_t kVocabulary = 1050;
  const auto logits = random_logits(kVocabulary, 8, 5);
  for (const float temperature :
       {std::numeric_limits<float>::denorm_min(), 1e-30f, 0.05f, 1.0f, 40.0f, std::numeric_limits<float>::max()}) {
    for (const std::int32_t top_k : {0, 1, 2, 1049, 1050, 1051, std::numeric_limits<std::int32_t>::max()}) {
      for (const float top_p : {std::numeric_limits<float>::denorm_min(), 1e-7f, 0.5f, 0.97f, 1.0f}) {
        SCOPED_TRACE(testing::Message() << "temperature " << temperature << ", top_k " << top_k << ", top_p " << top_p);
        Readout readout;
        readout.sampling = {.temperature = temperature, .top_k = top_k, .top_p = top_p};
        readout.top = kVocabulary;
        auto expected = distribution_by_definition(logits, kVocabulary, readout.sampling);
        const ReadoutResult result = read(logits, kVocabulary, readout);
        // Top-p's integer weights may end the set a token or two apart where tokens are about equally likely.
        ASSERT_NEAR(static_cast<double>(result.top.size()), static_cast<double>(expected.kept.size()),
                    top_p < 1 ? 2 : 0);
        expected = distribution_by_definition(
            logits, kVocabulary, {.temperature = temperature, .top_k = static_cast<std::int32_t>(result.top.size())});
        ASSERT_FALSE(result.top.empty());
        double sum = 0;
        for (std::size_t i = 0; i < result.top.size(); ++i) {
          const auto [token, logprob] = result.top[i];
          sum += std::exp(static_cast<double>(logprob));
          EXPECT_EQ(token, expected.kept[i]);
          // Where a probability is below what a float's exponential gives, only that it is tiny counts.
          if (expected.p[i] > 1e-30L) {
            EXPECT_NEAR(logprob, static_cast<double>(std::log(expected.p[i])), 1e-5 + 1e-6 * std::abs(logprob));
          } else {
            EXPECT_LT(logprob, -60);
          }
        }
        EXPECT_NEAR(sum, 1, 1e-5);
        EXPECT_TRUE(std::ranges::any_of(result.top, [&](const TokenLogprob& t) { return t.token == result.token; }));
      }
    }
  }
}

TEST(Sampler, SeedsOfAllSizesDrawWhatTheirRandomBitsSay) {
  constexpr std::int64_t kVocabulary = 1050;
  const auto logits = random_logits(kVocabulary, 9, 3);
  const auto d = distribution_by_definition(logits, kVocabulary, {});
  std::vector<long double> p(kVocabulary);
  for (std::size_t i = 0; i < d.kept.size(); ++i) p[static_cast<std::size_t>(d.kept[i])] = d.p[i];
  std::vector<TokenId> drawn;
  for (const std::uint64_t seed : {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{1} << 31, std::uint64_t{1} << 32,
                                   std::uint64_t{1} << 63, (std::uint64_t{1} << 63) - 1, ~std::uint64_t{0}}) {
    Readout readout;
    readout.key = {.seed = seed, .group = 0, .episode = 0, .position = 5};
    const TokenId token = read(logits, kVocabulary, readout).token;
    EXPECT_EQ(read(logits, kVocabulary, readout).token, token);
    const long double u = std::ldexp(static_cast<long double>(sample_bits(readout.key)), -64);
    const long double below = std::accumulate(p.begin(), p.begin() + token, 0.0L);
    EXPECT_GT(u, below - 1e-6L) << seed;
    EXPECT_LT(u, below + p[static_cast<std::size_t>(token)] + 1e-6L) << seed;
    drawn.push_back(token);
  }
  std::ranges::sort(drawn);
  EXPECT_GT(std::unique(drawn.begin(), drawn.end()) - drawn.begin(), 4) << "seeds should differ in what they draw";
}

TEST(Sampler, TheMostLikelyTokensComeFallingWithTheLogprobsTheyHaveAsTargets) {
  constexpr std::int64_t kVocabulary = 1100;
  auto logits = random_logits(kVocabulary, 10, 4);
  logits[700] = logits[30] = logits[1050] = 5;
  Readout readout;
  EXPECT_THAT(read(logits, kVocabulary, readout).top, testing::IsEmpty());
  for (const SamplingParams sampling :
       {SamplingParams{}, SamplingParams{.temperature = 0}, SamplingParams{.temperature = 0.5f, .top_k = 7},
        SamplingParams{.top_p = 0.4f}}) {
    readout.sampling = sampling;
    readout.top = 5;
    const ReadoutResult result = read(logits, kVocabulary, readout);
    ASSERT_EQ(result.top.size(), 5u);
    EXPECT_EQ(result.top[0].token, 30);
    EXPECT_EQ(result.top[0].token, result.most_likely);
    EXPECT_EQ(result.top[1].token, 700);
    EXPECT_EQ(result.top[2].token, 1050);
    for (const auto& [token, logprob] : result.top) {
      EXPECT_EQ(logprob, target_logprob(logits, kVocabulary, sampling, token));
    }
  }
  readout.sampling = {.top_k = 2};
  EXPECT_EQ(read(logits, kVocabulary, readout).top.size(), 2u) << "what was cut off is not listed";
}

TEST(Sampler, EveryPlaceInTheVocabularyCanBeSampled) {
  // One token holds nearly all the mass, at the edges of chunks and of the padding.
  for (const TokenId likely : {0, 15, 16, 1023, 1024, 2047, 2048, 2057}) {
    auto logits = random_logits(2058, 6, 1);
    logits[static_cast<std::size_t>(likely)] = 60;
    EXPECT_EQ(read(logits, 2058, {}).token, likely);
    EXPECT_NEAR(read(logits, 2058, {}).logprob, 0, 1e-6);
  }
}

TEST(Sampler, NanAndInfiniteLogitsAreRefused) {
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), kInfinity, -kInfinity}) {
    for (const std::size_t at : {0u, 500u, 1049u}) {
      auto logits = random_logits(1050, 7, 1);
      logits[at] = bad;
      SamplerScratch scratch;
      ReadoutResult result;
      EXPECT_FALSE(read_distribution(scalar_kernels(false), logits.data(), 1050, {}, scratch, &result));
    }
  }
}

TEST(Sampler, ParametersOutOfRangeAreNamed) {
  EXPECT_TRUE(check_sampling({}).ok());
  EXPECT_TRUE(check_sampling({.temperature = 0}).ok());
  const std::pair<SamplingParams, const char*> refused[] = {
      {{.temperature = -0.1f}, "temperature"},
      {{.temperature = kInfinity}, "temperature"},
      {{.temperature = std::numeric_limits<float>::quiet_NaN()}, "temperature"},
      {{.top_k = -1}, "top_k"},
      {{.top_p = 0}, "top_p"},
      {{.top_p = 1.01f}, "top_p"},
      {{.top_p = std::numeric_limits<float>::quiet_NaN()}, "top_p"},
  };
  for (const auto& [sampling, name] : refused) {
    const Status status = check_sampling(sampling);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(status.message(), testing::HasSubstr(name));
  }
}

TEST(Sampler, TheRandomBitsAreTheFirstTwoWordsOfPhilox) {
  // The third known answer for "philox4x32 10" in Random123's tests/kat_vectors.
  const SampleKey key{
      .seed = 0x299f31d0a4093822, .group = 0x85a308d3243f6a88, .episode = 0x13198a2e, .position = 0x03707344};
  EXPECT_EQ(sample_bits(key), 0x94fdccebd16cfe09u);
}

}  // namespace
}  // namespace flotilla
