#include "engine/sampler.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>
#include <span>

#include "base/philox.h"
#include "engine/rope.h"

namespace flotilla {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

struct Peak {
  float logit = 0;
  TokenId token = 0;
};

template <typename Body>
void for_each_chunk(std::int64_t padded, const Body& body) {
  for (std::int64_t begin = 0; begin < padded; begin += kVocabularyChunk) {
    body(begin, std::min(kVocabularyChunk, padded - begin));
  }
}

// Checks the logits, makes the padding impossible, and finds the most likely token. False for NaN or infinity.
bool find_peak(const KernelTable& kernels, float* logits, std::int64_t vocabulary, Peak* peak) {
  const std::int64_t padded = padded_vocabulary(vocabulary);
  std::fill(logits + vocabulary, logits + padded, logits[0]);
  if (kernels.largest_bits(logits, padded) >= kInfinityBits) return false;
  std::fill(logits + vocabulary, logits + padded, kMinusInfinity);
  std::int64_t chunk = 0;
  peak->logit = kMinusInfinity;
  for_each_chunk(padded, [&](std::int64_t begin, std::int64_t count) {
    const float maximum = kernels.maximum(logits + begin, count);
    if (maximum > peak->logit) {
      peak->logit = maximum;
      chunk = begin;
    }
  });
  peak->token = static_cast<TokenId>(std::find(logits + chunk, logits + padded, peak->logit) - logits);
  return true;
}

struct Total {
  double sum = 0;            // of exp(d)
  std::uint64_t weight = 0;  // of the sampling weights
};

Total totals(const KernelTable& kernels, const float* logits, std::int64_t vocabulary, float maximum,
             float temperature) {
  Total total;
  for_each_chunk(padded_vocabulary(vocabulary), [&](std::int64_t begin, std::int64_t count) {
    const ChunkSums sums = kernels.chunk_sums(logits + begin, count, maximum, temperature);
    total.sum += sums.sum;
    total.weight += sums.weight;
  });
  return total;
}

// The token in which the running sum of weights, in order of id, first exceeds `target`.
TokenId pick(const KernelTable& kernels, const float* logits, std::int64_t vocabulary, float maximum, float temperature,
             std::uint64_t target) {
  const std::int64_t padded = padded_vocabulary(vocabulary);
  for (std::int64_t begin = 0; begin < padded; begin += kVocabularyChunk) {
    const std::int64_t count = std::min(kVocabularyChunk, padded - begin);
    const std::uint64_t weight = kernels.chunk_sums(logits + begin, count, maximum, temperature).weight;
    if (target >= weight) {
      target -= weight;
      continue;
    }
    std::array<std::uint64_t, kVocabularyChunk> weights;
    kernels.chunk_weights(logits + begin, count, maximum, temperature, weights.data());
    std::int64_t i = 0;
    while (target >= weights[static_cast<std::size_t>(i)]) target -= weights[static_cast<std::size_t>(i++)];
    return static_cast<TokenId>(begin + i);
  }
  check_failed(__FILE__, __LINE__, "the target lies below the sum of all weights");
}

// Copies the logits that top-k and top-p keep into scratch.cut; all others become impossible.
void cut_off(const KernelTable& kernels, const float* logits, std::int64_t vocabulary, float maximum,
             const SamplingParams& sampling, SamplerScratch& scratch) {
  const auto n = static_cast<std::size_t>(vocabulary);
  const std::int64_t padded = padded_vocabulary(vocabulary);
  std::vector<TokenId>& order = scratch.order;
  order.resize(n);
  std::iota(order.begin(), order.end(), 0);
  const auto before = [&](TokenId a, TokenId b) { return logits[a] != logits[b] ? logits[a] > logits[b] : a < b; };
  if (sampling.top_k > 0 && static_cast<std::size_t>(sampling.top_k) < n) {
    std::nth_element(order.begin(), order.begin() + sampling.top_k - 1, order.end(), before);
    order.resize(static_cast<std::size_t>(sampling.top_k));
  }
  std::size_t kept = order.size();
  if (sampling.top_p < 1.0f) {
    std::vector<std::uint64_t>& weights = scratch.weights;
    weights.resize(static_cast<std::size_t>(padded));
    for_each_chunk(padded, [&](std::int64_t begin, std::int64_t count) {
      kernels.chunk_weights(logits + begin, count, maximum, sampling.temperature, weights.data() + begin);
    });
    std::uint64_t total = 0;
    for (const TokenId token : order) total += weights[static_cast<std::size_t>(token)];
    const auto limit = static_cast<std::uint64_t>(static_cast<double>(sampling.top_p) * static_cast<double>(total));
    // A heap gives the likely ones first without sorting the rest; those taken collect at the end of `order`.
    const auto after = [&](TokenId a, TokenId b) { return before(b, a); };
    std::make_heap(order.begin(), order.end(), after);
    std::uint64_t sum = 0;
    kept = 0;
    do {
      std::pop_heap(order.begin(), order.end() - static_cast<std::ptrdiff_t>(kept), after);
      ++kept;
      sum += weights[static_cast<std::size_t>(order[order.size() - kept])];
    } while (sum < limit && kept < order.size());
  }
  scratch.cut.assign(static_cast<std::size_t>(padded), kMinusInfinity);
  for (std::size_t i = order.size() - kept; i < order.size(); ++i)
    scratch.cut[static_cast<std::size_t>(order[i])] = logits[order[i]];
}

// Ids of the `count` most likely tokens that were kept, falling, ties by rising id. They stay in scratch.order.
std::span<const TokenId> most_likely(const float* kept, std::int64_t vocabulary, std::int32_t count,
                                     SamplerScratch& scratch) {
  std::vector<TokenId>& order = scratch.order;
  order.clear();
  for (TokenId token = 0; token < vocabulary; ++token) {
    if (kept[token] > kMinusInfinity) order.push_back(token);
  }
  const auto end = order.begin() + std::min<std::ptrdiff_t>(count, std::ssize(order));
  std::partial_sort(order.begin(), end, order.end(),
                    [&](TokenId a, TokenId b) { return kept[a] != kept[b] ? kept[a] > kept[b] : a < b; });
  return {order.begin(), end};
}

}  // namespace

Status check_sampling(const SamplingParams& sampling) {
  if (!(sampling.temperature >= 0) || !std::isfinite(sampling.temperature)) {
    return invalid_argument(fmt::format("temperature {} is not 0 or more", sampling.temperature));
  }
  if (sampling.top_k < 0) return invalid_argument(fmt::format("top_k {} is negative", sampling.top_k));
  if (!(sampling.top_p > 0 && sampling.top_p <= 1)) {
    return invalid_argument(fmt::format("top_p {} lies outside (0, 1]", sampling.top_p));
  }
  return ok_status();
}

std::uint64_t sample_bits(const SampleKey& key) {
  const auto words = philox4x32(
      {static_cast<std::uint32_t>(key.group), static_cast<std::uint32_t>(key.group >> 32), key.episode, key.position},
      {static_cast<std::uint32_t>(key.seed), static_cast<std::uint32_t>(key.seed >> 32)});
  return words[0] | std::uint64_t{words[1]} << 32;
}

bool read_distribution(const KernelTable& kernels, float* logits, std::int64_t vocabulary, const Readout& readout,
                       SamplerScratch& scratch, ReadoutResult* result) {
  Peak peak;
  if (!find_peak(kernels, logits, vocabulary, &peak)) return false;
  const SamplingParams& sampling = readout.sampling;
  const bool greedy = sampling.temperature == 0;
  const float temperature = greedy ? 1.0f : sampling.temperature;
  const float* kept = logits;
  if (!greedy && ((sampling.top_k > 0 && sampling.top_k < vocabulary) || sampling.top_p < 1)) {
    cut_off(kernels, logits, vocabulary, peak.logit, sampling, scratch);
    kept = scratch.cut.data();
  }
  const Total total = totals(kernels, kept, vocabulary, peak.logit, temperature);
  const double log_sum = exact_log(total.sum);
  const auto logprob = [&](TokenId token) {
    const float d = (kept[token] - peak.logit) / temperature;
    return static_cast<float>(static_cast<double>(d) - log_sum);
  };
  result->most_likely = peak.token;
  result->token = peak.token;
  if (!greedy) {
    const auto product = static_cast<unsigned __int128>(sample_bits(readout.key)) * total.weight;
    result->token = pick(kernels, kept, vocabulary, peak.logit, temperature, static_cast<std::uint64_t>(product >> 64));
  }
  result->logprob = logprob(result->token);
  result->target_logprob = readout.target ? logprob(*readout.target) : 0.0f;
  result->top.clear();
  if (readout.top > 0) {
    for (const TokenId token : most_likely(kept, vocabulary, readout.top, scratch)) {
      result->top.push_back({token, logprob(token)});
    }
  }
  return true;
}

bool all_logprobs(const KernelTable& kernels, float* logits, std::int64_t vocabulary, float* out) {
  Peak peak;
  if (!find_peak(kernels, logits, vocabulary, &peak)) return false;
  const double log_sum = exact_log(totals(kernels, logits, vocabulary, peak.logit, 1.0f).sum);
  for (std::int64_t i = 0; i < vocabulary; ++i) {
    out[i] = static_cast<float>(static_cast<double>((logits[i] - peak.logit) / 1.0f) - log_sum);
  }
  return true;
}

}  // namespace flotilla
