#include "cli/user_folders.h"

#include <cstdlib>

#include "base/hashing.h"

namespace flotilla {
namespace fs = std::filesystem;
namespace {

fs::path folder_of(const char* variable, const char* below_home) {
  if (const char* value = std::getenv(variable); value != nullptr && *value != '\0') return fs::path(value) / "flotilla";
  const char* home = std::getenv("HOME");
  return fs::path(home != nullptr && *home != '\0' ? home : "/tmp") / below_home / "flotilla";
}

}  // namespace

fs::path user_cache_folder() { return folder_of("XDG_CACHE_HOME", ".cache"); }
fs::path user_state_folder() { return folder_of("XDG_STATE_HOME", ".local/state"); }

std::string store_name(const RunAddress& address) {
  std::error_code error;
  fs::path absolute = fs::weakly_canonical(address.hub, error);
  if (error) absolute = fs::absolute(address.hub, error);
  return sha256(absolute.string()).to_hex().substr(0, 16);
}

}  // namespace flotilla
