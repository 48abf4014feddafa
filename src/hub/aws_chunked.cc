#include "hub/aws_chunked.h"

#include <algorithm>
#include <charconv>

#include <fmt/format.h>

namespace flotilla {
namespace {

constexpr std::size_t kLineMax = 1024;
constexpr std::size_t kTrailersMax = 8;
// A signed chunk is held until its signature is checked. Clients make them of 64 KiB to 1 MiB.
constexpr std::uint64_t kSignedChunkMax = 1 << 20;
constexpr std::string_view kSignature = ";chunk-signature=";
constexpr std::string_view kTrailerSignature = "x-amz-trailer-signature";

Status wrong(std::string_view what) { return invalid_argument(fmt::format("aws-chunked: {}", what)); }

}  // namespace

AwsChunkedBody::AwsChunkedBody(std::optional<ChunkSignatures> signatures, bool trailer)
    : signatures_(std::move(signatures)), trailer_(trailer) {}

Status AwsChunkedBody::feed(ByteSpan bytes, const Sink& sink) {
  while (!bytes.empty()) {
    if (state_ == State::kEnd) return wrong("bytes after the end");
    if (state_ == State::kData) {
      const ByteSpan piece = bytes.subspan(0, std::min<std::uint64_t>(left_, bytes.size()));
      bytes = bytes.subspan(piece.size());
      left_ -= piece.size();
      if (signatures_) {
        chunk_.insert(chunk_.end(), piece.begin(), piece.end());
      } else {
        FLOTILLA_RETURN_IF_ERROR(sink(piece));
      }
      if (left_ > 0) continue;
      state_ = State::kDataEnd;
      if (signatures_) {
        FLOTILLA_RETURN_IF_ERROR(signatures_->verify(chunk_, signature_));
        FLOTILLA_RETURN_IF_ERROR(sink(chunk_));
        chunk_.clear();
      }
      continue;
    }
    const auto end = std::find(bytes.begin(), bytes.end(), '\n');
    line_.append(bytes.begin(), end);
    if (line_.size() > kLineMax) return wrong("a line is too long");
    if (end == bytes.end()) return ok_status();
    bytes = bytes.subspan(static_cast<std::size_t>(end - bytes.begin()) + 1);
    if (!line_.ends_with('\r')) return wrong("a line does not end with CR LF");
    line_.pop_back();
    FLOTILLA_RETURN_IF_ERROR(take_line(line_));
    line_.clear();
  }
  return ok_status();
}

Status AwsChunkedBody::take_line(std::string_view line) {
  if (state_ == State::kSize) return take_size(line);
  if (state_ == State::kTrailer) return take_trailer(line);
  if (!line.empty()) return wrong("a chunk is longer than its size");
  state_ = State::kSize;
  return ok_status();
}

Status AwsChunkedBody::take_size(std::string_view line) {
  const std::size_t mark = std::min(line.find(';'), line.size());
  const auto [end, failed] = std::from_chars(line.data(), line.data() + mark, left_, 16);
  if (mark == 0 || failed != std::errc{} || end != line.data() + mark) return wrong("expected the size of a chunk");
  const std::string_view rest = line.substr(mark);
  if (signatures_) {
    if (!rest.starts_with(kSignature)) return wrong("a chunk without a signature");
    if (left_ > kSignedChunkMax) return wrong(fmt::format("a signed chunk of more than {} bytes", kSignedChunkMax));
    signature_ = rest.substr(kSignature.size());
  }
  if (left_ > 0) {
    state_ = State::kData;
    return ok_status();
  }
  if (signatures_) FLOTILLA_RETURN_IF_ERROR(signatures_->verify({}, signature_));
  state_ = State::kTrailer;
  return ok_status();
}

Status AwsChunkedBody::take_trailer(std::string_view line) {
  if (line.empty()) {
    if (signatures_ && trailer_ && !sealed_) return wrong("the trailing headers are not signed");
    state_ = State::kEnd;
    return ok_status();
  }
  const std::size_t colon = line.find(':');
  if (!trailer_ || sealed_ || colon == line.npos || colon == 0) return wrong("expected a trailing header or the end");
  if (trailers_.size() == kTrailersMax) return wrong("too many trailing headers");
  std::string name(line.substr(0, colon));
  std::ranges::transform(name, name.begin(), [](char c) { return c >= 'A' && c <= 'Z' ? c | 0x20 : c; });
  std::string_view value = line.substr(colon + 1);
  while (value.starts_with(' ')) value.remove_prefix(1);
  if (signatures_ && name == kTrailerSignature) {
    sealed_ = true;
    return signatures_->verify_trailer(trailer_text_, value);
  }
  trailer_text_ += fmt::format("{}:{}\n", name, value);
  trailers_.emplace_back(std::move(name), value);
  return ok_status();
}

}  // namespace flotilla
