#include "hub/checksums.h"

#include <gtest/gtest.h>

namespace flotilla {
namespace {

std::string sum(ChecksumKind kind, std::string_view text, std::size_t piece = 1000) {
  BodyDigest digest({kind});
  for (; !text.empty(); text.remove_prefix(std::min(piece, text.size())))
    digest.update(as_bytes(text.substr(0, piece)));
  return hex(from_base64(digest.finish().checksums.at(0).value).value());
}

// The check values of the catalogue of parametrised CRC algorithms (Cook), and of RFC 1321 and FIPS 180.
TEST(Checksums, ThePublishedValuesComeOut) {
  EXPECT_EQ(sum(ChecksumKind::kCrc32, "123456789"), "cbf43926");
  EXPECT_EQ(sum(ChecksumKind::kCrc32c, "123456789"), "e3069283");
  EXPECT_EQ(sum(ChecksumKind::kCrc64Nvme, "123456789"), "ae8b14860a799888");
  EXPECT_EQ(sum(ChecksumKind::kMd5, "abc"), "900150983cd24fb0d6963f7d28e17f72");
  EXPECT_EQ(sum(ChecksumKind::kSha1, "abc"), "a9993e364706816aba3e25717850c26c9cd0d89d");
  EXPECT_EQ(sum(ChecksumKind::kSha256, "abc"), sha256("abc").to_hex());
}

TEST(Checksums, PiecesOfAnySizeGiveTheSame) {
  std::string text;
  for (int i = 0; i < 1000; ++i) text += static_cast<char>(i * i >> 3);
  for (const auto kind : {ChecksumKind::kCrc32, ChecksumKind::kCrc32c, ChecksumKind::kCrc64Nvme}) {
    for (const std::size_t piece : {1, 3, 8, 13}) EXPECT_EQ(sum(kind, text, piece), sum(kind, text));
  }
}

TEST(Checksums, HeadersNameThem) {
  EXPECT_EQ(checksum_kind("x-amz-checksum-crc64nvme"), ChecksumKind::kCrc64Nvme);
  EXPECT_EQ(checksum_kind("content-md5"), ChecksumKind::kMd5);
  EXPECT_EQ(checksum_kind("x-amz-checksum-type"), std::nullopt);
  EXPECT_EQ(checksum_header(ChecksumKind::kSha1), "x-amz-checksum-sha1");
}

}  // namespace
}  // namespace flotilla
