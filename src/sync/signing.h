#pragma once

#include <array>
#include <filesystem>
#include <memory>
#include <string>

#include "base/bytes.h"
#include "base/status.h"

namespace flotilla {

using PublicKey = std::array<std::uint8_t, 32>;
using Signature = std::array<std::uint8_t, 64>;

// "sha256:<64 hex digits>" of the raw public key: what a person copies to join a run.
std::string fingerprint(const PublicKey& key);

// An Ed25519 key pair (RFC 8032). Thread safe.
class SigningKey {
 public:
  static Result<std::shared_ptr<const SigningKey>> generate();
  // Reads the PEM file, or makes a new key there (mode 0600) when it does not exist. A file that others can read is
  // permission_denied.
  static Result<std::shared_ptr<const SigningKey>> load_or_create(const std::filesystem::path& path);
  virtual ~SigningKey() = default;
  virtual const PublicKey& public_key() const = 0;
  virtual Signature sign(ByteSpan message) const = 0;
};

// permission_denied when the signature is not of this key and message.
Status verify_signature(const PublicKey& key, ByteSpan message, const Signature& signature);

}  // namespace flotilla
