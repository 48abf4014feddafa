#include <algorithm>
#include <cstdlib>

#include "sync/delta.h"
#include "sync/delta_frame.h"

namespace {

using namespace flotilla;

ModelDescription small_model() {
  ModelDescription description;
  const auto add = [&](const char* name, TensorKind kind, std::int64_t rows, std::int64_t cols) {
    TensorSpec spec;
    spec.name = name;
    spec.kind = kind;
    spec.rows = rows;
    spec.cols = cols;
    description.tensors.push_back(spec);
  };
  add("matrix", TensorKind::kMatrix, 3, 70);
  add("vector", TensorKind::kVector, 1, 9);
  return description;
}

GridState small_state(const ModelDescription& description) {
  GridState state;
  for (const TensorSpec& spec : description.tensors) {
    GridTensor& tensor = state.tensors.emplace_back();
    if (spec.kind == TensorKind::kMatrix) {
      tensor.q.resize(spec.size());
      for (std::size_t i = 0; i < tensor.q.size(); ++i)
        tensor.q[i] = static_cast<std::int8_t>(static_cast<int>(i * 37 % 255) - 127);
      tensor.scales.assign(spec.rows * groups_of(spec.cols), float_to_bf16(0.01f));
    } else {
      tensor.vector_q.assign(spec.size(), 100);
      tensor.vector_scale = 0.001f;
    }
  }
  return state;
}

void apply(ByteSpan bytes) {
  static const ModelDescription description = small_model();
  static const GridState base = small_state(description);
  const auto state = apply_delta(description, base, bytes);
  if (!state.ok()) return;
  if (!check_grid(description, *state).ok()) std::abort();
  // What is accepted has one content.
  const auto given = read_delta_frame(description, bytes);
  const auto again = read_delta_frame(description, encode_delta(description, base, *state)->bytes);
  if (given->raw != again->raw) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const ByteSpan bytes(data, size);
  apply(bytes);
  // The checksum and zstd would keep everything behind them from being tried: the input as the streams themselves, each
  // with its length in one byte.
  if (size < kDeltaStreams) return 0;
  DeltaStreams streams;
  ByteSpan rest = bytes.subspan(kDeltaStreams);
  for (int i = 0; i < kDeltaStreams; ++i) {
    const ByteSpan stream = rest.first(std::min<std::size_t>(bytes[i], rest.size()));
    streams[i].assign(stream.begin(), stream.end());
    rest = rest.subspan(stream.size());
  }
  apply(write_delta_frame(streams));
  return 0;
}
