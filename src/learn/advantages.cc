#include "learn/advantages.h"

#include <algorithm>
#include <numeric>

namespace flotilla {

std::vector<float> advantages(std::span<const double> rewards) {
  std::vector<float> result(rewards.size(), 0.0f);
  if (rewards.empty()) return result;
  const auto [low, high] = std::minmax_element(rewards.begin(), rewards.end());
  if (*low == *high) return result;
  const double mean = std::accumulate(rewards.begin(), rewards.end(), 0.0) / static_cast<double>(rewards.size());
  for (std::size_t i = 0; i < rewards.size(); ++i) result[i] = static_cast<float>(rewards[i] - mean);
  return result;
}

}  // namespace flotilla
