#pragma once

#include <array>
#include <cstdint>

#include "base/bytes.h"
#include "base/status.h"
#include "model/description.h"

namespace flotilla {

// The streams of delta codec 1, each with numbers of one kind, so that the entropy coder sees one distribution at a
// time.
enum DeltaStream {
  kCounts,          // how many entries each tensor has in the other streams
  kGaps,            // matrices: positions of changed integers
  kSteps,           // matrices: new minus old
  kGroupGaps,       // matrices: scale groups with a new scale
  kGroupScales,     // their scales
  kGroupIntegers,   // and all their integers
  kVectorGaps,      // vectors: positions of changed integers
  kVectorSteps,     // vectors: new minus old
  kVectorScales,    // scales of vectors that got a new one
  kVectorIntegers,  // and all their integers
  kDeltaStreams
};

using DeltaStreams = std::array<Bytes, kDeltaStreams>;

// Magic, codec number, lengths, zstd frame, checksum. See docs/formats/delta.md.
Bytes write_delta_frame(const DeltaStreams& streams);

struct DeltaFrame {
  Bytes raw;
  std::array<ByteSpan, kDeltaStreams> streams;  // into raw
};
// data_loss for anything that write_delta_frame does not write, before memory beyond what a delta of this model can
// need is touched.
Result<DeltaFrame> read_delta_frame(const ModelDescription& description, ByteSpan bytes);

}  // namespace flotilla
