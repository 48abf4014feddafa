#pragma once

#include <algorithm>
#include <iterator>
#include <memory>
#include <utility>

#include "sync/version_parts.h"

namespace flotilla {

// The state after a delta, and in `history` its history, made as a worker makes it. After an error history is as it
// was.
inline Result<GridState> apply_delta(const ModelDescription& description, const GridState& base, ByteSpan bytes,
                                     DeltaHistory& history, int threads = 1) {
  FLOTILLA_RETURN_IF_ERROR(check_history(description, history));
  VersionParts parts{.base = [&](TensorIndex i) { return base.tensors[static_cast<std::size_t>(i)]; },
                     .history = std::make_shared<const DeltaHistory>(history)};
  FLOTILLA_ASSIGN_OR_RETURN(parts.deltas.emplace_back(),
                            read_delta_frame(description, Bytes(bytes.begin(), bytes.end())));
  GridState state;
  ThreadPool pool(threads);
  std::size_t part = 0;
  DeltaHistory next;
  FLOTILLA_RETURN_IF_ERROR(make_tensors(
      description, parts, pool,
      [&](TensorIndex, std::span<GridTensor> tensors) {
        std::ranges::move(tensors, std::back_inserter(state.tensors));
        return ok_status();
      },
      part, &next));
  FLOTILLA_RETURN_IF_ERROR(check_grid(description, state));
  history = std::move(next);
  return state;
}

}  // namespace flotilla
