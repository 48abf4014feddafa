#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "base/status.h"
#include "base/thread_pool.h"
#include "model/grid.h"
#include "sync/delta_frame.h"

namespace flotilla {

// So many bytes of tensors are made at a time, or one tensor that is larger.
inline constexpr std::int64_t kTensorsAtATimeBytes = 8 << 20;

// What a version is made of, tensor by tensor: those of an anchor or of what somebody holds, and the deltas after them.
struct VersionParts {
  TensorReader base;  // asked by several threads
  std::vector<DeltaFrame> deltas;
};

// Makes the tensors in order and shows some at a time to `use`, whose they are then. An error is one of `use` or of the
// part whose number is in `part`: 0 the base, 1 the first delta.
Status make_tensors(const ModelDescription& description, const VersionParts& parts, ThreadPool& pool,
                    const std::function<Status(TensorIndex first, std::span<GridTensor> tensors)>& use,
                    std::size_t& part);

}  // namespace flotilla
