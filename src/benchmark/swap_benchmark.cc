#include "benchmark/swap_benchmark.h"

#include <chrono>
#include <utility>

#include "base/clock.h"
#include "sync/delta.h"

namespace flotilla {

GridState next_version(GridState state) {
  constexpr std::size_t kOneIn = 256;
  for (GridTensor& tensor : state.tensors) {
    for (std::size_t i = 0; i < tensor.q.size(); i += kOneIn) {
      std::int8_t& q = tensor.q[i];
      q = static_cast<std::int8_t>(q > 0 ? q - 1 : q + 1);
    }
  }
  return state;
}

Result<SwapTime> measure_swap(Engine& engine, const GridState& before, ByteSpan delta, int threads) {
  const auto seconds = [](std::chrono::nanoseconds time) { return std::chrono::duration<double>(time).count(); };
  GridState base = before;
  const auto begin = system_clock().monotonic();
  FLOTILLA_ASSIGN_OR_RETURN(const GridState after, apply_delta(engine.description(), std::move(base), delta));
  static_cast<void>(state_digest(engine.description(), after, threads));
  const auto applied = system_clock().monotonic();
  FLOTILLA_RETURN_IF_ERROR(engine.load(after, OpenSequences::kKeep));
  return SwapTime{.apply_seconds = seconds(applied - begin),
                  .load_seconds = seconds(system_clock().monotonic() - applied)};
}

}  // namespace flotilla
