#include "sync/test_model.h"
#include "sync/tensors_for_tests.h"

#include <algorithm>

namespace flotilla {
namespace {

std::int64_t random_step(PhiloxStream& random) {
  const std::int64_t size = random.below(50) == 0 ? 1 + static_cast<std::int64_t>(random.below(300)) : 1;
  return random.below(2) == 0 ? size : -size;
}

template <typename Integer>
void change(std::vector<Integer>& values, double rate, std::int64_t limit, PhiloxStream& random) {
  for (Integer& value : values) {
    if (random.uniform() < rate) {
      value = static_cast<Integer>(std::clamp<std::int64_t>(value + random_step(random), -limit, limit));
    }
  }
}

std::uint16_t random_scale(PhiloxStream& random) {
  return float_to_bf16(static_cast<float>(0.0005 + random.uniform() * 0.001));
}

}  // namespace

ModelDescription test_description() {
  return description_of({{"embedding", TensorKind::kMatrix, 17, 150},
                         {"norm", TensorKind::kVector, 1, 150},
                         {"q", TensorKind::kMatrix, 5, 64},
                         {"one", TensorKind::kMatrix, 1, 1},
                         {"final_norm", TensorKind::kVector, 1, 3}});
}

GridState random_state(const ModelDescription& description, PhiloxStream& random) {
  GridState state;
  for (const TensorSpec& spec : description.tensors) {
    GridTensor tensor;
    if (spec.kind == TensorKind::kMatrix) {
      tensor.q.resize(spec.size());
      for (std::int8_t& q : tensor.q) q = static_cast<std::int8_t>(static_cast<int>(random.below(255)) - 127);
      tensor.scales.resize(spec.rows * groups_of(spec.cols));
      for (std::uint16_t& scale : tensor.scales) scale = random_scale(random);
    } else {
      tensor.vector_q.resize(spec.size());
      for (std::int16_t& q : tensor.vector_q)
        q = static_cast<std::int16_t>(static_cast<int>(random.below(65535)) - 32767);
      tensor.vector_scale = static_cast<float>(1e-5 + random.uniform() * 1e-5);
    }
    state.tensors.push_back(std::move(tensor));
  }
  return state;
}

GridState changed_state(const ModelDescription& description, const GridState& state, ChangeRates rates,
                        PhiloxStream& random) {
  GridState next = state;
  for (std::size_t i = 0; i < next.tensors.size(); ++i) {
    const TensorSpec& spec = description.tensors[i];
    GridTensor& tensor = next.tensors[i];
    change(tensor.q, rates.integers, kMatrixLimit, random);
    change(tensor.vector_q, rates.vectors, kVectorLimit, random);
    for (std::size_t group = 0; group < tensor.scales.size(); ++group) {
      if (random.uniform() >= rates.scales) continue;
      tensor.scales[group] = random_scale(random);
      const std::int64_t groups = groups_of(spec.cols);
      const std::int64_t row = static_cast<std::int64_t>(group) / groups;
      const std::int64_t first = static_cast<std::int64_t>(group) % groups * kScaleGroup;
      for (std::int64_t col = first; col < std::min(first + kScaleGroup, spec.cols); ++col) {
        tensor.q[row * spec.cols + col] = static_cast<std::int8_t>(static_cast<int>(random.below(255)) - 127);
      }
    }
    if (spec.kind == TensorKind::kVector && random.uniform() < rates.scales) tensor.vector_scale *= 1.25f;
  }
  return next;
}

std::shared_ptr<const SigningKey> test_key() {
  static const std::shared_ptr<const SigningKey> key = SigningKey::generate().value();
  return key;
}

std::shared_ptr<const SigningKey> other_key() {
  static const std::shared_ptr<const SigningKey> key = SigningKey::generate().value();
  return key;
}

}  // namespace flotilla
