#pragma once

#include <filesystem>
#include <string>

#include "base/status.h"

namespace flotilla {

struct TlsFiles {
  std::filesystem::path certificate;  // PEM, with its chain
  std::filesystem::path key;          // PEM
};

// A certificate of this machine's own, for localhost, its addresses and the host's name, with its key: made in `folder`
// unless they are there, so that the pin stays. The key can be read by this user only.
Result<TlsFiles> self_signed_certificate(const std::filesystem::path& folder);

// What clients hold a server to that no authority vouches for, as curl takes it: "sha256//" and the SHA-256 of the
// certificate's public key in base64.
Result<std::string> public_key_pin(const std::filesystem::path& certificate);

}  // namespace flotilla
