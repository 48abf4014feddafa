#include <cstddef>
#include <cstdint>
#include <optional>

#include "base/bytes.h"
#include "hub/aws_chunked.h"

// The first byte says how. A body comes out the same in one piece and byte by byte.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace flotilla;
  if (size == 0) return 0;
  const bool is_signed = (data[0] & 1) != 0, trailer = (data[0] & 2) != 0;
  const ByteSpan wire(data + 1, size - 1);
  const auto feed = [&](std::size_t piece) {
    std::optional<ChunkSignatures> signatures;
    if (is_signed) signatures.emplace("secret", SigV4Scope{{}, "us-east-1"}, std::string(64, 'a'));
    AwsChunkedBody body(std::move(signatures), trailer);
    std::string text;
    Status status;
    for (std::size_t at = 0; at < wire.size() && status.ok(); at += piece) {
      status = body.feed(wire.subspan(at, std::min(piece, wire.size() - at)), [&](ByteSpan bytes) {
        text += as_text(bytes);
        return ok_status();
      });
    }
    FLOTILLA_CHECK(text.size() <= wire.size());
    return std::tuple(status.code(), status.ok() ? text : "", status.ok() && body.ended());
  };
  FLOTILLA_CHECK(feed(wire.size() + 1) == feed(1));
  return 0;
}
