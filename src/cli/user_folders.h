#pragma once

#include <filesystem>
#include <string>

#include "cli/run_address.h"

namespace flotilla {

// Artifacts and indexes that can be made again: $XDG_CACHE_HOME/flotilla or ~/.cache/flotilla.
std::filesystem::path user_cache_folder();
// What a worker must not forget: $XDG_STATE_HOME/flotilla or ~/.local/state/flotilla.
std::filesystem::path user_state_folder();
// A folder name for a hub: two hubs may have runs of one name.
std::string store_name(const RunAddress& address);

}  // namespace flotilla
