#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "base/bytes.h"
#include "base/status.h"
#include "model/description.h"

namespace flotilla {

// The streams of codec 1, each with numbers of one kind.
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

using DeltaStreamSpans = std::array<ByteSpan, kDeltaStreams>;

// The codec that is written and the newest that is read (docs/formats/delta.md).
inline constexpr int kDeltaCodec = 2;

// Magic, codec number, lengths, parts, checksum.
Bytes write_delta_frame(std::span<const Bytes> parts);

struct DeltaFrame {
  int codec = kDeltaCodec;
  Bytes bytes;
  std::vector<ByteSpan> parts;  // codec 2: into bytes, one for each part of the layout
  DeltaStreamSpans streams;     // codec 1: into bytes
  bool forgets = false;         // the history begins anew after it, as the manifest says
};
// Keeps the bytes of codec 2, and unpacks those of codec 1. data_loss for anything that no codec writes, before memory
// beyond what a delta of this model can need is touched; failed_precondition for a newer codec.
Result<DeltaFrame> read_delta_frame(const ModelDescription& description, Bytes bytes);

}  // namespace flotilla
