#include "hub/checksums.h"

#include <openssl/evp.h>

#include <utility>

namespace flotilla {
namespace {

constexpr std::pair<std::string_view, ChecksumKind> kHeaders[] = {
    {"content-md5", ChecksumKind::kMd5},
    {"x-amz-checksum-crc32", ChecksumKind::kCrc32},
    {"x-amz-checksum-crc32c", ChecksumKind::kCrc32c},
    {"x-amz-checksum-crc64nvme", ChecksumKind::kCrc64Nvme},
    {"x-amz-checksum-sha1", ChecksumKind::kSha1},
    {"x-amz-checksum-sha256", ChecksumKind::kSha256},
};

// Cyclic redundancy checks in their reflected form, eight bytes a step (Kounavis and Berry, "Novel Table Lookup-Based
// Algorithms for High-Performance CRC Generation", 2008).
using CrcTables = std::array<std::array<std::uint64_t, 256>, 8>;

constexpr CrcTables crc_tables(std::uint64_t polynomial) {
  CrcTables tables{};
  for (std::uint64_t byte = 0; byte < 256; ++byte) {
    std::uint64_t value = byte;
    for (int bit = 0; bit < 8; ++bit) value = (value >> 1) ^ (value & 1 ? polynomial : 0);
    tables[0][byte] = value;
  }
  for (std::size_t table = 1; table < 8; ++table) {
    for (std::size_t byte = 0; byte < 256; ++byte) {
      const std::uint64_t value = tables[table - 1][byte];
      tables[table][byte] = (value >> 8) ^ tables[0][value & 255];
    }
  }
  return tables;
}

constexpr CrcTables kCrc32 = crc_tables(0xEDB88320);
constexpr CrcTables kCrc32c = crc_tables(0x82F63B78);
constexpr CrcTables kCrc64Nvme = crc_tables(0x9A6C9329AC4BC9B5);

std::uint64_t crc_update(const CrcTables& tables, std::uint64_t crc, ByteSpan bytes) {
  for (; bytes.size() >= 8; bytes = bytes.subspan(8)) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes.data(), 8);
    word ^= crc;
    crc = 0;
    for (std::size_t i = 0; i < 8; ++i) crc ^= tables[7 - i][word >> (8 * i) & 255];
  }
  for (const std::uint8_t byte : bytes) crc = (crc >> 8) ^ tables[0][(crc ^ byte) & 255];
  return crc;
}

std::string big_endian(std::uint64_t value, std::size_t count) {
  Bytes bytes;
  for (std::size_t i = count; i-- > 0;) bytes.push_back(static_cast<std::uint8_t>(value >> (8 * i)));
  return base64(bytes);
}

struct Crc {
  const CrcTables& tables;
  std::size_t bytes;
  std::uint64_t value;
};

std::optional<Crc> crc_of(ChecksumKind kind) {
  switch (kind) {
    case ChecksumKind::kCrc32: return Crc{kCrc32, 4, 0xFFFFFFFF};
    case ChecksumKind::kCrc32c: return Crc{kCrc32c, 4, 0xFFFFFFFF};
    case ChecksumKind::kCrc64Nvme: return Crc{kCrc64Nvme, 8, ~std::uint64_t{0}};
    default: return std::nullopt;
  }
}

struct ContextDeleter {
  void operator()(EVP_MD_CTX* context) const { EVP_MD_CTX_free(context); }
};

struct Sum {
  ChecksumKind kind;
  std::optional<Crc> crc;
  std::unique_ptr<EVP_MD_CTX, ContextDeleter> context;  // MD5 and SHA-1
};

}  // namespace

std::optional<ChecksumKind> checksum_kind(std::string_view header) {
  for (const auto& [name, kind] : kHeaders) {
    if (name == header) return kind;
  }
  return std::nullopt;
}

std::string_view checksum_header(ChecksumKind kind) {
  for (const auto& [name, known] : kHeaders) {
    if (known == kind) return name;
  }
  return {};
}

struct BodyDigest::State {
  Sha256 sha256;
  std::vector<Sum> sums;
};

BodyDigest::BodyDigest(const std::vector<ChecksumKind>& kinds) : state_(std::make_unique<State>()) {
  for (const ChecksumKind kind : kinds) {
    Sum sum{kind, crc_of(kind), nullptr};
    if (kind == ChecksumKind::kMd5 || kind == ChecksumKind::kSha1) {
      sum.context.reset(EVP_MD_CTX_new());
      FLOTILLA_CHECK(
          EVP_DigestInit_ex(sum.context.get(), kind == ChecksumKind::kMd5 ? EVP_md5() : EVP_sha1(), nullptr) == 1);
    }
    state_->sums.push_back(std::move(sum));
  }
}
BodyDigest::~BodyDigest() = default;
BodyDigest::BodyDigest(BodyDigest&&) noexcept = default;

void BodyDigest::update(ByteSpan bytes) {
  state_->sha256.update(bytes);
  for (Sum& sum : state_->sums) {
    if (sum.crc) sum.crc->value = crc_update(sum.crc->tables, sum.crc->value, bytes);
    if (sum.context) FLOTILLA_CHECK(EVP_DigestUpdate(sum.context.get(), bytes.data(), bytes.size()) == 1);
  }
}

BodyDigest::Sums BodyDigest::finish() {
  Sums sums;
  sums.sha256 = state_->sha256.finish();
  for (Sum& sum : state_->sums) {
    Checksum checksum{sum.kind, {}};
    if (sum.crc) {
      checksum.value = big_endian(~sum.crc->value, sum.crc->bytes);
    } else if (sum.context) {
      std::array<std::uint8_t, EVP_MAX_MD_SIZE> digest{};
      unsigned int size = 0;
      FLOTILLA_CHECK(EVP_DigestFinal_ex(sum.context.get(), digest.data(), &size) == 1);
      checksum.value = base64({digest.data(), size});
    } else {
      checksum.value = base64(sums.sha256.bytes);
    }
    sums.checksums.push_back(std::move(checksum));
  }
  return sums;
}

}  // namespace flotilla
