#include "sync/delta_frame.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include <fmt/format.h>
#include <zstd.h>

#include "base/hashing.h"
#include "model/grid.h"
#include "sync/delta_layout.h"
#include "sync/signed_json.h"

namespace flotilla {
namespace {

constexpr std::array<std::uint8_t, 4> kMagic = {'F', 'D', 'L', 'T'};
constexpr std::size_t kHeaderBytes = 8;  // magic, codec, zero
constexpr std::size_t kChecksumBytes = 8;
constexpr std::size_t kLengthsBytes = 8 * kDeltaStreams;

// No delta of codec 1 has more bytes before compression: at most one entry an integer, gaps of a tensor sum to its
// size, so that a varint beyond one byte is paid for by 127 positions without one.
std::uint64_t raw_bytes_max(const ModelDescription& description) {
  std::uint64_t bytes = kLengthsBytes;
  for (const TensorSpec& spec : description.tensors) {
    const auto size = static_cast<std::uint64_t>(spec.size());
    const auto groups = static_cast<std::uint64_t>(spec.rows * groups_of(spec.cols));
    bytes += 20;  // counts: two varints
    bytes +=
        spec.kind == TensorKind::kMatrix ? 5 * size + 4 * groups : 7 * size + 4;  // gap 2, step 2 or 3, whole 1 or 2
  }
  return bytes;
}

// One zstd frame, behind its content size, with the streams of codec 1.
Result<DeltaFrame> read_streams(const ModelDescription& description, ByteSpan content) {
  ByteReader header(content);
  FLOTILLA_ASSIGN_OR_RETURN(const auto raw_size, header.get<std::uint64_t>());
  const std::uint64_t most = raw_bytes_max(description);
  if (raw_size < kLengthsBytes || raw_size > most) {
    return data_loss(fmt::format("{} bytes before compression; expected {} to {}", raw_size, kLengthsBytes, most));
  }
  const ByteSpan compressed = content.subspan(header.position());
  // One frame that says its size and fills the place it has.
  if (ZSTD_getFrameContentSize(compressed.data(), compressed.size()) != raw_size ||
      ZSTD_findFrameCompressedSize(compressed.data(), compressed.size()) != compressed.size()) {
    return data_loss("the zstd frame is not of the size that the header says");
  }
  DeltaFrame frame;
  frame.codec = 1;
  frame.bytes.resize(raw_size);
  const std::size_t size = ZSTD_decompress(frame.bytes.data(), raw_size, compressed.data(), compressed.size());
  if (ZSTD_isError(size)) return data_loss(fmt::format("zstd: {}", ZSTD_getErrorName(size)));
  if (size != raw_size) return data_loss(fmt::format("{} bytes after decompression; expected {}", size, raw_size));

  ByteReader reader(frame.bytes);
  std::array<std::uint64_t, kDeltaStreams> lengths;
  for (std::uint64_t& length : lengths) {
    FLOTILLA_ASSIGN_OR_RETURN(length, reader.get<std::uint64_t>());
  }
  for (int i = 0; i < kDeltaStreams; ++i) {
    FLOTILLA_ASSIGN_OR_RETURN(frame.streams[i], reader.get_bytes(lengths[i]).with_context(fmt::format("stream {}", i)));
  }
  if (reader.remaining() != 0) return data_loss(fmt::format("{} bytes after the last stream", reader.remaining()));
  return frame;
}

// Lengths, then parts. The content lies in `bytes`.
Result<DeltaFrame> read_parts(const ModelDescription& description, ByteSpan content, Bytes bytes) {
  DeltaFrame frame;
  frame.bytes = std::move(bytes);
  ByteReader reader(content);
  std::vector<std::uint64_t> lengths(delta_layout(description).parts.size());
  for (std::uint64_t& length : lengths) {
    FLOTILLA_ASSIGN_OR_RETURN(length, reader.get_varint().with_context("lengths"));
  }
  for (const std::uint64_t length : lengths) {
    FLOTILLA_ASSIGN_OR_RETURN(frame.parts.emplace_back(), reader.get_bytes(length).with_context("parts"));
  }
  if (reader.remaining() != 0) return data_loss(fmt::format("{} bytes after the last part", reader.remaining()));
  return frame;
}

}  // namespace

Bytes write_delta_frame(std::span<const Bytes> parts) {
  const std::array<std::uint8_t, kHeaderBytes> header = {kMagic[0], kMagic[1], kMagic[2], kMagic[3], kDeltaCodec};
  ByteWriter writer;
  for (const Bytes& part : parts) writer.put_varint(part.size());
  const Bytes lengths = std::move(writer).take();
  std::size_t size = header.size() + lengths.size() + kChecksumBytes;
  for (const Bytes& part : parts) size += part.size();

  Bytes bytes(size);
  std::ranges::copy(header, bytes.data());
  std::ranges::copy(lengths, bytes.data() + header.size());
  std::size_t end = header.size() + lengths.size();
  for (const Bytes& part : parts) {
    std::ranges::copy(part, bytes.data() + end);
    end += part.size();
  }
  const std::uint64_t checksum = xxh3_64(ByteSpan(bytes).first(end));
  std::memcpy(bytes.data() + end, &checksum, kChecksumBytes);
  return bytes;
}

Result<DeltaFrame> read_delta_frame(const ModelDescription& description, Bytes bytes) {
  const ByteSpan all = bytes;
  ByteReader header(all);
  FLOTILLA_ASSIGN_OR_RETURN(const ByteSpan magic, header.get_bytes(kMagic.size()));
  if (!std::ranges::equal(magic, kMagic)) return data_loss("does not begin as a delta does");
  FLOTILLA_ASSIGN_OR_RETURN(const auto codec, header.get<std::uint16_t>());
  if (codec > kDeltaCodec) return upgrade_needed("the codec", std::to_string(codec), kDeltaCodec);
  FLOTILLA_ASSIGN_OR_RETURN(const auto zero, header.get<std::uint16_t>());
  if (bytes.size() < kHeaderBytes + kChecksumBytes) return data_loss(fmt::format("has only {} bytes", bytes.size()));
  std::uint64_t checksum;
  std::memcpy(&checksum, bytes.data() + bytes.size() - kChecksumBytes, kChecksumBytes);
  if (xxh3_64(all.first(all.size() - kChecksumBytes)) != checksum) return data_loss("the checksum does not fit");
  if (codec == 0 || zero != 0) return data_loss(fmt::format("codec {}, reserved field {}", codec, zero));
  const ByteSpan content = all.subspan(kHeaderBytes, all.size() - kHeaderBytes - kChecksumBytes);
  return codec == 1 ? read_streams(description, content) : read_parts(description, content, std::move(bytes));
}

}  // namespace flotilla
