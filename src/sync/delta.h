#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/bytes.h"
#include "base/status.h"
#include "base/thread_pool.h"
#include "model/grid.h"
#include "sync/delta_codec1.h"
#include "sync/delta_frame.h"
#include "sync/delta_layout.h"

namespace flotilla {

struct EncodedDelta {
  Bytes bytes;
  DeltaHistory history;              // of the state after it
  std::int64_t changed = 0;          // integers that differ
  std::int64_t total = 0;            // integers in all
  std::int64_t rescaled_groups = 0;  // groups and vectors with another scale; their integers travel whole
};

// What leads from `before`, with its history, to `after`. The same states give the same bytes on every machine with
// every number of threads. data_loss when a state is not on the grid of the description.
Result<EncodedDelta> encode_delta(const ModelDescription& description, const GridState& before,
                                  const DeltaHistory& history, const GridState& after, int threads = 1);

// Room for the changes of a region, for each thread; one does for many deltas.
using DeltaScratch = std::vector<std::vector<Change>>;

// Applies a delta to tensors and their history, batch by batch of the layout, in order. Strict: a change out of range,
// one that changes nothing, or anything left at the end is data_loss, and tensors and history are then undefined.
// Description, layout and frame outlive it.
class DeltaApplication {
 public:
  DeltaApplication(const ModelDescription& description, const DeltaLayout& layout, const DeltaFrame& frame);
  // `tensors`: the batch's; `history`: of all regions.
  Status apply(const DeltaLayout::Batch& batch, std::span<GridTensor> tensors, DeltaHistory& history, ThreadPool& pool,
               DeltaScratch& scratch);
  Status finish() const;

 private:
  Status apply_part(std::size_t part, std::size_t first_tensor, std::span<GridTensor> tensors, DeltaHistory& history,
                    std::vector<Change>& changes);

  const ModelDescription& description_;
  const DeltaLayout& layout_;
  const DeltaFrame& frame_;
  std::optional<StreamsApplication> streams_;  // of codec 1
};

}  // namespace flotilla
