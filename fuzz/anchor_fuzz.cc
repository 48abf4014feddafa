#include <cstdlib>

#include "sync/anchor.h"
#include "sync/tensors_for_tests.h"

namespace {

using namespace flotilla;

ModelDescription small_model() {
  return description_of({{"m", TensorKind::kMatrix, 2, 70}, {"v", TensorKind::kVector, 1, 3}});
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const ModelDescription model = small_model();
  const AnchorLabel label{"r", Version(0), {}};
  const auto anchor = open_anchor(model, Bytes(data, data + size), label);
  if (!anchor.ok()) return 0;
  if (!check_history(model, anchor->history).ok()) std::abort();
  GridState state;
  for (TensorIndex i = 0; i < std::ssize(model.tensors); ++i) state.tensors.push_back(anchor->read(i));
  if (!check_grid(model, state).ok()) return 0;
  // What is accepted is written again and says the same.
  const auto again = open_anchor(model, encode_anchor(model, state, anchor->history, label).value(), label);
  if (!again.ok() || again->history != anchor->history) std::abort();
  for (TensorIndex i = 0; i < std::ssize(model.tensors); ++i) {
    if (again->read(i) != state.tensors[static_cast<std::size_t>(i)]) std::abort();
  }
  return 0;
}
