#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "base/hashing.h"

namespace flotilla {

// The checksums that S3 clients send along, each in base64, numbers with the high byte first.
enum class ChecksumKind { kMd5, kCrc32, kCrc32c, kCrc64Nvme, kSha1, kSha256 };

// "x-amz-checksum-crc32" and the like, "content-md5".
std::optional<ChecksumKind> checksum_kind(std::string_view header);
std::string_view checksum_header(ChecksumKind kind);

struct Checksum {
  ChecksumKind kind = ChecksumKind::kCrc32;
  std::string value;
};

// Computes the SHA-256 of a stream and the checksums asked for. Not thread safe.
class BodyDigest {
 public:
  explicit BodyDigest(const std::vector<ChecksumKind>& kinds);
  ~BodyDigest();
  BodyDigest(BodyDigest&&) noexcept;
  void update(ByteSpan bytes);
  struct Sums {
    Sha256Digest sha256;
    std::vector<Checksum> checksums;  // in the order they were asked for
  };
  // Once.
  Sums finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace flotilla
