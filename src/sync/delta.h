#pragma once

#include <cstdint>
#include <vector>

#include "base/bytes.h"
#include "base/status.h"
#include "model/grid.h"
#include "sync/delta_frame.h"

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

// Applies a delta tensor by tensor, in the order of the description: each becomes the one after the changes. Strict: a
// change out of range, one that changes nothing, or anything left at the end is data_loss, and the tensor is then
// undefined. The frame outlives it.
class DeltaApplication {
 public:
  explicit DeltaApplication(const DeltaFrame& frame);
  Status apply(const TensorSpec& spec, GridTensor& tensor);
  Status finish() const;

 private:
  std::vector<ByteReader> streams_;
};

// The state after the changes, made out of `base`, which is consumed. Strict: a prefix, a changed bit, a byte too much,
// a change out of range or one that changes nothing is data_loss, and no state is returned; a newer codec is
// failed_precondition. Memory is bounded by the description, whatever the bytes say. That `base` is the right one is
// for the caller to check, by state_digest of the result.
Result<GridState> apply_delta(const ModelDescription& description, GridState base, ByteSpan delta);

}  // namespace flotilla
