#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "hub/access.h"

namespace flotilla {

struct TokenLimits {
  std::uint64_t object_bytes_max = 1 << 30;
  double requests_per_s = 100;
  std::uint64_t written_bytes_max = 0;  // of all that the token ever writes; 0: no limit
};

struct HubToken {
  std::string id;  // the access key
  HubGrant grant;
  TokenLimits limits;
  std::uint64_t written_bytes = 0;
  std::chrono::sys_seconds created{};
  bool revoked = false;
};

struct OwnerLimits {
  std::uint64_t bytes_max = 0;  // 0: no limit
  int keep_days = 0;            // groups, events and claims that are older are removed; 0: none are
};

// Tokens and limits of owners, in a folder of their own: hub.db (SQLite), and hub.key, which secrets are derived from
// (docs/design/hub.md). The database alone gives no secret away. Thread safe; several processes may have it open.
class TokenStore {
 public:
  // Makes what is missing, readable by this user only.
  static Result<std::unique_ptr<TokenStore>> open(const std::filesystem::path& folder);
  virtual ~TokenStore() = default;

  struct Issued {
    HubToken token;
    std::string secret;
  };
  virtual Result<Issued> add(const HubGrant& grant, const TokenLimits& limits) = 0;
  virtual Result<std::vector<HubToken>> list() = 0;
  // not_found.
  virtual Status revoke(std::string_view id) = 0;
  // not_found; revoked tokens are found.
  virtual Result<HubToken> find(std::string_view id) = 0;
  // internal_error when the key is not the one that the token was made with.
  virtual Result<std::string> secret_of(std::string_view id) = 0;
  // Binds a worker's token that has no worker yet to this one. permission_denied when it is another's already, or the
  // worker has a token of this run that is not revoked.
  virtual Status bind_worker(std::string_view id, std::string_view worker) = 0;
  // Counts bytes that the token has written.
  virtual Status add_written(std::string_view id, std::uint64_t bytes) = 0;

  virtual Status set_owner(std::string_view owner, const OwnerLimits& limits) = 0;
  // No limits where none were set.
  virtual Result<OwnerLimits> owner(std::string_view owner) = 0;
};

}  // namespace flotilla
