#pragma once

#include <cmath>

#include "base/philox.h"
#include "model/weights.h"

namespace flotilla {

// A random model small enough for tests.
inline ModelWeights make_tiny_model(std::uint64_t seed, bool tied = true) {
  ModelDescription sizes;
  sizes.architecture = "llama";
  sizes.layers = 2;
  sizes.hidden = 24;
  sizes.heads = 4;
  sizes.kv_heads = 2;
  sizes.head_dim = 6;
  sizes.ffn = 40;
  sizes.vocabulary = 61;
  sizes.context = 64;
  sizes.norm_epsilon = 1e-5f;
  sizes.rope_theta = 10000;
  sizes.tied_embeddings = tied;
  ModelWeights weights{describe_model(sizes).value(), {}};
  PhiloxStream random(seed, 0);
  for (const TensorSpec& spec : weights.description.tensors) {
    std::vector<float>& tensor = weights.tensors.emplace_back(spec.size());
    const double spread = spec.kind == TensorKind::kMatrix ? 1.5 / std::sqrt(static_cast<double>(spec.cols)) : 0.2;
    const double middle = spec.kind == TensorKind::kMatrix ? 0 : 1;
    for (float& value : tensor) value = static_cast<float>(middle + spread * (2 * random.uniform() - 1));
  }
  return weights;
}

}  // namespace flotilla
