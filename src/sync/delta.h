#pragma once

#include <cstdint>

#include "base/bytes.h"
#include "base/status.h"
#include "model/grid.h"

namespace flotilla {

// The codec that encode_delta writes and the newest that apply_delta knows (docs/formats/delta.md).
inline constexpr int kDeltaCodec = 1;

struct EncodedDelta {
  Bytes bytes;
  std::int64_t changed = 0;          // integers that differ
  std::int64_t total = 0;            // integers in all
  std::int64_t rescaled_groups = 0;  // groups and vectors with another scale; their integers travel whole
};

// What leads from `before` to `after`. The same states give the same bytes with the same zstd. data_loss when a state
// is not on the grid of the description.
Result<EncodedDelta> encode_delta(const ModelDescription& description, const GridState& before, const GridState& after);

// The state after the changes, made out of `base`, which is consumed. Strict: a prefix, a changed bit, a byte too much,
// a change out of range or one that changes nothing is data_loss, and no state is returned; a newer codec is
// failed_precondition. Memory is bounded by the description, whatever the bytes say. That `base` is the right one is
// for the caller to check, by state_digest of the result.
Result<GridState> apply_delta(const ModelDescription& description, GridState base, ByteSpan delta);

}  // namespace flotilla
