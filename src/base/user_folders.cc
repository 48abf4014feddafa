#include "base/user_folders.h"

#include <cstdlib>

#include "base/hashing.h"

namespace flotilla {
namespace fs = std::filesystem;
namespace {

// A relative path in an XDG variable is invalid and to be ignored (XDG Base Directory Specification).
fs::path folder_of(const char* variable, const char* below_home) {
  if (const char* value = std::getenv(variable); value != nullptr && *value == '/') return fs::path(value) / "flotilla";
  const char* home = std::getenv("HOME");
  return fs::path(home != nullptr && *home != '\0' ? home : ".") / below_home / "flotilla";
}

}  // namespace

fs::path user_config_folder() { return folder_of("XDG_CONFIG_HOME", ".config"); }
fs::path user_cache_folder() { return folder_of("XDG_CACHE_HOME", ".cache"); }
fs::path user_state_folder() { return folder_of("XDG_STATE_HOME", ".local/state"); }

std::string hub_folder_name(std::string_view hub) {
  if (const std::size_t mark = hub.find('?'); hub.find("://") != hub.npos) {
    // A bucket is the same whatever region and keys it is asked with, but not at another endpoint.
    std::string place(hub.substr(0, mark));
    while (place.ends_with('/')) place.pop_back();
    const std::size_t endpoint = hub.find("endpoint=");
    if (endpoint != hub.npos) place += hub.substr(endpoint, hub.find('&', endpoint) - endpoint);
    return sha256(place).to_hex().substr(0, 16);
  }
  std::error_code error;
  const fs::path absolute = fs::absolute(hub, error);
  fs::path folder = fs::weakly_canonical(absolute, error);
  if (error) folder = absolute.lexically_normal();
  if (!folder.has_filename()) folder = folder.parent_path();
  return sha256(folder.string()).to_hex().substr(0, 16);
}

}  // namespace flotilla
