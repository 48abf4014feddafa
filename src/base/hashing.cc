#include "base/hashing.h"

#include <openssl/evp.h>
#include <xxhash.h>

#include <algorithm>

#include <fmt/format.h>

namespace flotilla {
namespace {

EVP_MD_CTX* context_of(void* context) { return static_cast<EVP_MD_CTX*>(context); }

}  // namespace

Result<Sha256Digest> Sha256Digest::from_hex(std::string_view text) {
  Sha256Digest digest;
  if (text.size() != 64) return data_loss(fmt::format("a SHA-256 has 64 hex digits, got {}", text.size()));
  FLOTILLA_ASSIGN_OR_RETURN(const Bytes bytes, flotilla::from_hex(text));
  std::copy(bytes.begin(), bytes.end(), digest.bytes.begin());
  return digest;
}

Sha256::Sha256() : context_(EVP_MD_CTX_new()) {
  FLOTILLA_CHECK(context_ != nullptr && EVP_DigestInit_ex(context_of(context_), EVP_sha256(), nullptr) == 1);
}

Sha256::~Sha256() { EVP_MD_CTX_free(context_of(context_)); }

void Sha256::update(ByteSpan bytes) {
  FLOTILLA_CHECK(EVP_DigestUpdate(context_of(context_), bytes.data(), bytes.size()) == 1);
}

void Sha256::update_framed(ByteSpan bytes) {
  update_value(static_cast<std::uint64_t>(bytes.size()));
  update(bytes);
}

Sha256Digest Sha256::finish() {
  Sha256Digest digest;
  FLOTILLA_CHECK(EVP_DigestFinal_ex(context_of(context_), digest.bytes.data(), nullptr) == 1);
  return digest;
}

Sha256Digest sha256(ByteSpan bytes) {
  Sha256 hash;
  hash.update(bytes);
  return hash.finish();
}

std::uint64_t xxh3_64(ByteSpan bytes, std::uint64_t seed) {
  return XXH3_64bits_withSeed(bytes.data(), bytes.size(), seed);
}

}  // namespace flotilla
