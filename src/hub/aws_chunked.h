#pragma once

#include <functional>
#include <optional>
#include <string>

#include "base/bytes.h"
#include "base/status.h"
#include "store/sigv4.h"

namespace flotilla {

// Takes a body in the encoding aws-chunked apart: chunks of "SIZE[;chunk-signature=...]\r\n", bytes, "\r\n"; one of
// size 0; headers behind it. Signed chunks are passed on when their signature is right. Not thread safe.
class AwsChunkedBody {
 public:
  using Sink = std::function<Status(ByteSpan)>;

  // With `signatures` every chunk has to be signed. `trailer`: headers may follow the last chunk.
  AwsChunkedBody(std::optional<ChunkSignatures> signatures, bool trailer);

  // invalid_argument: not such a body; permission_denied: a wrong signature; else what the sink says.
  Status feed(ByteSpan bytes, const Sink& sink);
  // Whether the end has been seen.
  bool ended() const { return state_ == State::kEnd; }
  // Names in lower case; whole at the end.
  const NamedValues& trailers() const { return trailers_; }

 private:
  enum class State { kSize, kData, kDataEnd, kTrailer, kEnd };
  Status take_line(std::string_view line);
  Status take_size(std::string_view line);
  Status take_trailer(std::string_view line);

  std::optional<ChunkSignatures> signatures_;
  const bool trailer_;
  State state_ = State::kSize;
  std::string line_;
  std::uint64_t left_ = 0;  // of the chunk's bytes
  Bytes chunk_;             // of a signed chunk, what is there
  std::string signature_;
  std::string trailer_text_;
  bool sealed_ = false;  // the signature of the trailing headers was right
  NamedValues trailers_;
};

}  // namespace flotilla
