#pragma once

#include <cstdint>

#include "benchmark/machine_limits.h"
#include "model/description.h"

namespace flotilla {

// What a forward pass cannot do without.
struct ForwardWork {
  double int8_operations = 0;
  double fp32_operations = 0;
  double bytes = 0;  // read from memory
};

struct ForwardShape {
  std::int64_t rows = 0;          // tokens through all layers
  std::int64_t head_rows = 0;     // of these, with the vocabulary's product
  std::int64_t keys = 0;          // that all rows attend to, summed
  std::int64_t kv_positions = 0;  // distinct, read from memory
};

// One byte a weight and two a scale (groups of 64), each read once a pass; keys and values as half precision, each
// position once. Counts the model's own sizes, without padding.
ForwardWork forward_work(const ModelDescription& model, const ForwardShape& shape);

// The least time of one pass: arithmetic at its peaks, overlapped with reading at its peak ("Roofline", Williams,
// Waterman and Patterson, CACM 2009).
double least_seconds(const ForwardWork& work, const MachineLimits& limits);

}  // namespace flotilla
