#pragma once

#include <string>

#include "base/bytes.h"
#include "base/hashing.h"
#include "base/ids.h"
#include "base/status.h"
#include "model/grid.h"
#include "sync/delta_layout.h"

namespace flotilla {

inline constexpr int kAnchorFormat = 2;  // the newest that is read, and the one that is written

// What an anchor says about itself; a reader compares it with the manifest.
struct AnchorLabel {
  std::string run;
  Version version;
  Sha256Digest state;
};

// A full snapshot as a safetensors file (docs/formats/anchor.md).
Result<Bytes> encode_anchor(const ModelDescription& description, const GridState& state, const DeltaHistory& history,
                            const AnchorLabel& label);

// data_loss when the file is not whole, not of this model or not what `expected` says; failed_precondition when its
// format is newer than this program. That the tensors pass check_grid, and that state and history have the right
// digests, is for the caller to see.
struct OpenAnchor {
  TensorReader read;     // the two keep the bytes,
  TensorWriter replace;  // and this one writes over them
  DeltaHistory history;
};
Result<OpenAnchor> open_anchor(const ModelDescription& description, Bytes bytes, const AnchorLabel& expected);

}  // namespace flotilla
