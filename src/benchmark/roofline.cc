#include "benchmark/roofline.h"

#include <algorithm>

#include "model/grid.h"

namespace flotilla {

ForwardWork forward_work(const ModelDescription& model, const ForwardShape& shape) {
  double block_weights = 0;
  double block_bytes = 0;
  const auto bytes_of = [&](const TensorSpec& spec) {
    return static_cast<double>(spec.size() + 2 * spec.rows * groups_of(spec.cols));
  };
  for (const DecoderBlock& block : model.blocks) {
    for (const TensorIndex index : {block.q, block.k, block.v, block.o, block.gate, block.up, block.down}) {
      const TensorSpec& spec = model.tensors[static_cast<std::size_t>(index)];
      block_weights += static_cast<double>(spec.size());
      block_bytes += bytes_of(spec);
    }
  }
  const TensorSpec& head = model.tensors[static_cast<std::size_t>(model.head)];
  const auto rows = static_cast<double>(shape.rows);
  const auto head_rows = static_cast<double>(shape.head_rows);
  ForwardWork work;
  work.int8_operations = 2 * (rows * block_weights + head_rows * static_cast<double>(head.size()));
  // A key costs a product with the query and one with the value, two operations each.
  work.fp32_operations = 4.0 * static_cast<double>(shape.keys) * model.layers * model.heads * model.head_dim;
  work.bytes = block_bytes + (shape.head_rows > 0 ? bytes_of(head) : 0) +
               4.0 * static_cast<double>(shape.kv_positions) * model.layers * model.kv_heads * model.head_dim;
  return work;
}

double least_seconds(const ForwardWork& work, const MachineLimits& limits) {
  const double arithmetic =
      work.int8_operations / (limits.int8_operations * 1e9) + work.fp32_operations / (limits.fp32_operations * 1e9);
  return std::max(arithmetic, work.bytes / (limits.read_bytes * 1e9));
}

}  // namespace flotilla
