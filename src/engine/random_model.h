#pragma once

#include <cmath>
#include <cstdint>

#include "base/philox.h"
#include "model/description.h"
#include "model/grid.h"

namespace flotilla {

// A model of given sizes with random weights of realistic magnitude, the same for the same seed. For tests and benches.
struct RandomModel {
  ModelDescription description;
  GridState state;
};

inline Result<RandomModel> random_model(const ModelDescription& sizes, std::uint64_t seed) {
  RandomModel model;
  FLOTILLA_ASSIGN_OR_RETURN(model.description, describe_model(sizes));
  std::uint64_t stream = 0;
  for (const TensorSpec& spec : model.description.tensors) {
    PhiloxStream random(seed, stream++);
    GridTensor tensor;
    if (spec.kind == TensorKind::kVector) {
      const bool bias = spec.name.ends_with("bias");
      tensor.vector_scale = 1.0f / 16384;
      for (std::int64_t i = 0; i < spec.size(); ++i) {
        const auto noise = static_cast<std::int16_t>(static_cast<int>(random.next_u32() % 8192) - 4096);
        tensor.vector_q.push_back(static_cast<std::int16_t>(bias ? noise : 16384 + noise));
      }
    } else {
      // Uniform integers have a standard deviation of 73; a row then multiplies a unit vector by about 1, the head
      // by 3.
      const bool head = spec.rows == model.description.vocabulary;
      const double scale = (head ? 3.0 : 1.0) / (73.0 * std::sqrt(static_cast<double>(spec.cols)));
      tensor.q.resize(static_cast<std::size_t>(spec.size()));
      for (std::int8_t& q : tensor.q) q = static_cast<std::int8_t>(static_cast<int>(random.next_u32() % 255) - 127);
      tensor.scales.resize(static_cast<std::size_t>(spec.rows * groups_of(spec.cols)));
      for (std::uint16_t& s : tensor.scales) s = float_to_bf16(static_cast<float>(scale * (0.5 + random.uniform())));
    }
    model.state.tensors.push_back(std::move(tensor));
  }
  return model;
}

}  // namespace flotilla
