#pragma once

#include <array>
#include <string_view>

#include "model/description.h"

namespace flotilla {

// Sizes of models that others have published, for random weights in benchmarks and tests. Not yet described
// (describe_model).
struct PublishedSizes {
  std::string_view name;
  ModelDescription (*sizes)();
};

inline ModelDescription smollm2_135m() {
  ModelDescription d;
  d.architecture = "llama";
  d.layers = 30;
  d.hidden = 576;
  d.heads = 9;
  d.kv_heads = 3;
  d.head_dim = 64;
  d.ffn = 1536;
  d.vocabulary = 49152;
  d.context = 8192;
  d.norm_epsilon = 1e-5f;
  d.rope_theta = 100000;
  d.tied_embeddings = true;
  return d;
}

inline ModelDescription qwen25_05b() {
  ModelDescription d;
  d.architecture = "qwen2";
  d.layers = 24;
  d.hidden = 896;
  d.heads = 14;
  d.kv_heads = 2;
  d.head_dim = 64;
  d.ffn = 4864;
  d.vocabulary = 151936;
  d.context = 32768;
  d.norm_epsilon = 1e-6f;
  d.rope_theta = 1000000;
  d.tied_embeddings = true;
  return d;
}

inline constexpr std::array<PublishedSizes, 2> kPublishedSizes = {
    {{"smollm2-135m", smollm2_135m}, {"qwen2.5-0.5b", qwen25_05b}}};

}  // namespace flotilla
