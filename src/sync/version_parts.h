#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "base/status.h"
#include "base/thread_pool.h"
#include "model/grid.h"
#include "sync/delta_frame.h"
#include "sync/delta_layout.h"

namespace flotilla {

// What a version is made of, tensor by tensor: those of an anchor or of what somebody holds, and the deltas after them.
struct VersionParts {
  TensorReader base;                            // asked by several threads
  TensorWriter replace = nullptr;               // of the base; none while somebody else holds it
  std::shared_ptr<const DeltaHistory> history;  // of the base
  std::vector<DeltaFrame> deltas = {};
  std::size_t applied = 0;  // deltas before those, which are in the base
};

// Makes the tensors in order and shows a batch at a time (delta_layout.h) to `use`, whose they are then; `history`, if
// any, becomes theirs. An error is one of `use` or of the part whose number is in `part`: 0 the base, 1 the first
// delta.
Status make_tensors(const ModelDescription& description, const VersionParts& parts, ThreadPool& pool,
                    const std::function<Status(TensorIndex first, std::span<GridTensor> tensors)>& use,
                    std::size_t& part, DeltaHistory* history = nullptr);

// Adds the next delta. When those that wait have more than waiting_bytes_max(), they are applied to the base, of which
// a copy is made where somebody else holds it. After an error, as above, the parts are of no use.
Status add_delta(const ModelDescription& description, DeltaFrame delta, ThreadPool& pool, VersionParts& parts,
                 std::size_t& part);

// The most bytes that deltas wait with, and that a delta has for which a version on its way has room: a sixteenth of a
// version's. One with changes of one step has so many where one integer in twelve changes; usual are few in 1,000.
// Beside a larger one the publisher writes an anchor, which is taken instead of it.
std::int64_t waiting_bytes_max(const ModelDescription& description);

// The most bytes that the parts of a version and the tensors in the making take: a whole version, the deltas that wait
// and one that comes, a batch of tensors, the changes in the regions that so many threads are at, counted as if they
// were spread evenly, and the histories of what is held, of an anchor's bytes, of the parts and of the result.
std::int64_t version_bytes_max(const ModelDescription& description, int threads);

// No anchor and no delta of this model has more bytes: what a reader makes room for, whatever a manifest says.
std::int64_t object_bytes_max(const ModelDescription& description);

}  // namespace flotilla
