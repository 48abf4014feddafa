#pragma once

#include <array>

#include <zstd.h>

#include "base/bytes.h"
#include "base/hashing.h"
#include "sync/delta_frame.h"

namespace flotilla {

using DeltaStreams = std::array<Bytes, kDeltaStreams>;

// Codec 1 is read and no longer written: frames of any streams, for tests of the reader.
inline Bytes write_codec1_frame(const DeltaStreams& streams) {
  ByteWriter raw;
  for (const Bytes& stream : streams) raw.put(static_cast<std::uint64_t>(stream.size()));
  for (const Bytes& stream : streams) raw.put_bytes(stream);
  const Bytes content = std::move(raw).take();
  Bytes compressed(ZSTD_compressBound(content.size()));
  compressed.resize(ZSTD_compress(compressed.data(), compressed.size(), content.data(), content.size(), 1));

  ByteWriter frame;
  frame.put_bytes(as_bytes("FDLT"));
  frame.put(std::uint16_t{1});
  frame.put(std::uint16_t{0});
  frame.put(static_cast<std::uint64_t>(content.size()));
  frame.put_bytes(compressed);
  Bytes bytes = std::move(frame).take();
  const std::uint64_t checksum = xxh3_64(bytes);
  for (int i = 0; i < 8; ++i) bytes.push_back(static_cast<std::uint8_t>(checksum >> 8 * i));
  return bytes;
}

}  // namespace flotilla
