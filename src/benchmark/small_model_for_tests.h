#pragma once

#include "engine/random_model.h"

namespace flotilla {

// Two layers with biases and tied embeddings: all that a benchmark's arithmetic needs, in no time.
inline const RandomModel& small_model() {
  static const RandomModel model = [] {
    ModelDescription sizes;
    sizes.architecture = "qwen2";
    sizes.layers = 2;
    sizes.hidden = 32;
    sizes.heads = 2;
    sizes.kv_heads = 1;
    sizes.head_dim = 16;
    sizes.ffn = 64;
    sizes.vocabulary = 100;
    sizes.context = 128;
    sizes.norm_epsilon = 1e-5f;
    sizes.rope_theta = 10000;
    sizes.tied_embeddings = true;
    return random_model(sizes, 1).value();
  }();
  return model;
}

}  // namespace flotilla
