#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "model/grid.h"
#include "sync/change_coder.h"
#include "sync/delta_layout.h"

namespace flotilla {

// What a part's stream adapts as it goes.
struct PartModel {
  ChangeModel matrices;
  ChangeModel vectors;
  AdaptiveBit region_rescaled;  // whether any scale of a region is new
  AdaptiveBit group_rescaled;   // whether this one is, in such a region
};

struct RegionReport {
  std::int64_t changed = 0;          // integers that differ
  std::int64_t rescaled_groups = 0;  // groups and vectors with another scale; their integers travel whole
};

// Writes what leads from one tensor to another in a region, and makes its history that of the later one.
RegionReport encode_region(const TensorSpec& spec, const DeltaRegion& region, const GridTensor& before,
                           const GridTensor& after, ChangeHistory& history, PartModel& model, RangeEncoder& out);
// Applies it. data_loss for a change out of range, one that changes nothing, or what encode_region does not write;
// tensor and history are then undefined. Regions of a tensor may be decoded at the same time. `changes` is room for
// them, which is used again and again: asking for it anew takes a part of the time.
Status decode_region(const TensorSpec& spec, const DeltaRegion& region, GridTensor& tensor, ChangeHistory& history,
                     PartModel& model, RangeDecoder& in, std::vector<Change>& changes);

}  // namespace flotilla
