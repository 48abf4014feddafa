#include <algorithm>
#include <cstdlib>

#include "sync/apply_delta_for_tests.h"
#include "sync/delta.h"
#include "sync/delta_codec1_for_tests.h"
#include "sync/tensors_for_tests.h"

namespace {

using namespace flotilla;

ModelDescription small_model() {
  return description_of({{"matrix", TensorKind::kMatrix, 3, 70}, {"vector", TensorKind::kVector, 1, 9}});
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

const ModelDescription& model() {
  static const ModelDescription model = small_model();
  return model;
}

void apply(ByteSpan bytes) {
  static const GridState base = small_state(model());
  DeltaHistory history = no_history(model());
  history[0] = {{.position = 3, .age = 1, .up = 1}, {.position = 70, .age = 15, .up = 0}};
  const auto state = apply_delta(model(), base, bytes, history);
  if (!state.ok()) return;
  // What is accepted is a state, with a history, that leads on.
  if (!check_grid(model(), *state).ok() || !check_history(model(), history).ok()) std::abort();
  DeltaHistory back = history;
  const auto again = apply_delta(model(), *state, encode_delta(model(), *state, history, base)->bytes, back);
  if (!again.ok() || *again != base) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const ByteSpan bytes(data, size);
  apply(bytes);
  // The checksum would keep everything behind it from being tried: the input as the part of codec 2, and as the streams
  // of codec 1, each with its length in one byte.
  std::vector<Bytes> parts(delta_layout(model()).parts.size());
  parts[0].assign(bytes.begin(), bytes.end());
  apply(write_delta_frame(parts));
  if (size < kDeltaStreams) return 0;
  DeltaStreams streams;
  ByteSpan rest = bytes.subspan(kDeltaStreams);
  for (int i = 0; i < kDeltaStreams; ++i) {
    const ByteSpan stream = rest.first(std::min<std::size_t>(bytes[i], rest.size()));
    streams[i].assign(stream.begin(), stream.end());
    rest = rest.subspan(stream.size());
  }
  apply(write_codec1_frame(streams));
  return 0;
}
