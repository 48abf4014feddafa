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
#include "sync/delta_layout.h"

namespace flotilla {

// What a version is made of, tensor by tensor: those of an anchor or of what somebody holds, and the deltas after them.
struct VersionParts {
  TensorReader base;               // asked by several threads
  TensorWriter replace = nullptr;  // of the base; none while somebody else holds it
  DeltaHistory history = {};       // of the base
  std::vector<DeltaFrame> deltas = {};
  std::size_t applied = 0;  // deltas before those, which are in the base
};

// Makes the tensors in order and shows a batch at a time (delta_layout.h) to `use`, whose they are then; returns the
// history. An error is one of `use` or of the part whose number is in `part`: 0 the base, 1 the first delta.
Result<DeltaHistory> make_tensors(const ModelDescription& description, const VersionParts& parts, ThreadPool& pool,
                                  const std::function<Status(TensorIndex first, std::span<GridTensor> tensors)>& use,
                                  std::size_t& part);

// Adds the next delta. When those that wait have more than a sixteenth of a version's bytes, they are applied to the
// base, of which a copy is made where somebody else holds it. After an error, as above, the parts are of no use.
Status add_delta(const ModelDescription& description, DeltaFrame delta, ThreadPool& pool, VersionParts& parts,
                 std::size_t& part);

// The most bytes that the parts of a version and the tensors in the making take: a whole version, the deltas that wait,
// and one that comes, packed and unpacked, as long as it has no more than a sixteenth of a version's bytes too: some 15
// in 1,000 integers change. Usual are few in 1,000. Histories are not counted: each has up to an eighth of a byte an
// integer, and a version on its way has some copies of it.
std::int64_t version_bytes_max(const ModelDescription& description);

}  // namespace flotilla
