#pragma once

#include <cstdint>
#include <initializer_list>

#include "model/description.h"

namespace flotilla {

struct NamedTensor {
  const char* name;
  TensorKind kind;
  std::int64_t rows, cols;
};

// A description of these tensors and nothing else: enough for grids and deltas, for no engine.
inline ModelDescription description_of(std::initializer_list<NamedTensor> tensors) {
  ModelDescription description;
  for (const NamedTensor& tensor : tensors) {
    TensorSpec& spec = description.tensors.emplace_back();
    spec.name = tensor.name;
    spec.kind = tensor.kind;
    spec.rows = tensor.rows;
    spec.cols = tensor.cols;
  }
  return description;
}

}  // namespace flotilla
