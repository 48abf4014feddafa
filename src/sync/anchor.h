#pragma once

#include <string>

#include "base/bytes.h"
#include "base/hashing.h"
#include "base/ids.h"
#include "base/status.h"
#include "model/grid.h"

namespace flotilla {

inline constexpr int kAnchorFormat = 1;

// What an anchor says about itself; a reader compares it with the manifest.
struct AnchorLabel {
  std::string run;
  Version version;
  Sha256Digest state;
};

// A full snapshot as a safetensors file (docs/formats/anchor.md).
Result<Bytes> encode_anchor(const ModelDescription& description, const GridState& state, const AnchorLabel& label);
// data_loss when the file is not whole, not of this model or not what `expected` says; failed_precondition when its
// format is newer than this program. The digest of the content is for the caller to compute and compare.
Result<GridState> decode_anchor(const ModelDescription& description, ByteSpan bytes, const AnchorLabel& expected);
// The same without a copy of the whole: the two keep the bytes, and `replace` writes over them. That the tensors pass
// check_grid is for the caller to see.
struct OpenAnchor {
  TensorReader read;
  TensorWriter replace;
};
Result<OpenAnchor> open_anchor(const ModelDescription& description, Bytes bytes, const AnchorLabel& expected);

}  // namespace flotilla
