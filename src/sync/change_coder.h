#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "sync/change_history.h"
#include "sync/range_coder.h"

namespace flotilla {

// Whole rows of one matrix, or a vector as one row.
struct ChangeRegion {
  std::uint32_t integers = 0;  // at most kRegionMax; positions begin at 0
  std::int64_t cols = 0;
  // bf16, of the scale groups of these rows. An optimizer moves all weights about as far a step, so a step of the grid
  // is taken as often as it is small.
  std::span<const std::uint16_t> scales;
};

// The probabilities that a stream of changes adapts as it goes.
struct ChangeModel {
  std::array<AdaptiveBit, kHistoryVersions + 1> changed_again;  // by age
  std::array<AdaptiveBit, kHistoryVersions + 1> same_direction;
  AdaptiveBit up;
  std::array<AdaptiveBit, 16> longer;  // a step of more than 1, 3, 7, ...
};

// Writes the changes of a region, by rising position, given the past changes in it. What both sides know must be equal:
// region, past and model.
void encode_changes(const ChangeRegion& region, std::span<const PastChange> past, std::span<const Change> changes,
                    ChangeModel& model, RangeEncoder& out);
// Appends them. data_loss for what encode_changes does not write.
Status decode_changes(const ChangeRegion& region, std::span<const PastChange> past, ChangeModel& model,
                      RangeDecoder& in, std::vector<Change>& changes);

}  // namespace flotilla
