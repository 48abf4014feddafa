#include "hub/body_receiver.h"

#include <fmt/format.h>

namespace flotilla {
namespace {

constexpr std::uint64_t kChunkOverhead = 64 << 10;  // beside 2 % of the body: clients make chunks of 8 KiB and more

std::vector<ChecksumKind> kinds_of(const S3Body& body) {
  std::vector<ChecksumKind> kinds;
  for (const Checksum& checksum : body.checksums) kinds.push_back(checksum.kind);
  if (const auto kind = checksum_kind(body.trailer)) kinds.push_back(*kind);
  return kinds;
}

std::optional<AwsChunkedBody> chunks_of(const Admitted& admitted) {
  if (!admitted.request.body.chunked) return std::nullopt;
  const SigV4Claim& claim = admitted.claim;
  std::optional<ChunkSignatures> signatures;
  if (claim.payload_hash != kUnsignedChunksWithTrailer) {
    signatures.emplace(admitted.secret, claim.scope, claim.signature);
  }
  return std::make_optional<AwsChunkedBody>(std::move(signatures), claim.payload_hash != kSignedChunks);
}

}  // namespace

BodyReceiver::BodyReceiver(const Admitted& admitted, Sink sink)
    : body_(admitted.request.body),
      payload_hash_(admitted.claim.payload_hash),
      sink_(std::move(sink)),
      digest_(kinds_of(body_)),
      chunks_(chunks_of(admitted)) {}

Status BodyReceiver::take(ByteSpan bytes) {
  if (!chunks_) return pass_on(bytes);
  wire_bytes_ += bytes.size();
  if (wire_bytes_ > body_.bytes + body_.bytes / 50 + kChunkOverhead)
    return invalid_argument("the chunks are too small");
  return chunks_->feed(bytes, [this](ByteSpan piece) { return pass_on(piece); });
}

Status BodyReceiver::pass_on(ByteSpan bytes) {
  received_ += bytes.size();
  if (received_ > body_.bytes)
    return invalid_argument(fmt::format("more than the {} bytes that were told", body_.bytes));
  digest_.update(bytes);
  return sink_(bytes);
}

Result<Sha256Digest> BodyReceiver::finish() {
  if (received_ != body_.bytes || (chunks_ && !chunks_->ended())) {
    return invalid_argument(fmt::format("{} of {} bytes have come", received_, body_.bytes));
  }
  const BodyDigest::Sums sums = digest_.finish();
  std::vector<Checksum> expected = body_.checksums;
  if (!body_.trailer.empty()) {
    const NamedValues& trailers = chunks_->trailers();
    if (trailers.size() != 1 || trailers.front().first != body_.trailer) {
      return invalid_argument(fmt::format("the trailing header {} is missing", body_.trailer));
    }
    expected.push_back({*checksum_kind(body_.trailer), trailers.front().second});
  }
  for (std::size_t i = 0; i < expected.size(); ++i) {
    if (expected[i].value == sums.checksums[i].value) continue;
    return data_loss(fmt::format("{} is {}; expected {}", checksum_header(expected[i].kind), sums.checksums[i].value,
                                 expected[i].value));
  }
  const bool is_digest = payload_hash_.size() == 64;
  if (is_digest && payload_hash_ != sums.sha256.to_hex()) {
    return data_loss(fmt::format("the body's SHA-256 is {}; expected {}", sums.sha256.to_hex(), payload_hash_));
  }
  return sums.sha256;
}

}  // namespace flotilla
