#pragma once

#include <functional>
#include <optional>

#include "hub/admission.h"
#include "hub/aws_chunked.h"
#include "hub/checksums.h"

namespace flotilla {

// The body of a request as it comes: taken apart, passed on, and held against its length and all checksums that it came
// with. Not thread safe.
class BodyReceiver {
 public:
  using Sink = AwsChunkedBody::Sink;
  BodyReceiver(const Admitted& admitted, Sink sink);

  Status take(ByteSpan bytes);
  // What has come is whole and right: its SHA-256. invalid_argument: not whole; data_loss: a checksum differs;
  // permission_denied: a wrong signature.
  Result<Sha256Digest> finish();

 private:
  Status pass_on(ByteSpan bytes);

  const S3Body body_;
  const std::string payload_hash_;
  const Sink sink_;
  BodyDigest digest_;
  std::optional<AwsChunkedBody> chunks_;
  std::uint64_t wire_bytes_ = 0;  // of chunks
  std::uint64_t received_ = 0;
};

}  // namespace flotilla
