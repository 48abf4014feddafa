#pragma once

#include <filesystem>
#include <string>
#include <string_view>

// Where Flotilla keeps what belongs to a user of this machine. A folder need not exist yet.
namespace flotilla {

// Keys: $XDG_CONFIG_HOME/flotilla or ~/.config/flotilla.
std::filesystem::path user_config_folder();
// What can be made again, artifacts and indexes: $XDG_CACHE_HOME/flotilla or ~/.cache/flotilla.
std::filesystem::path user_cache_folder();
// What a program must not forget: $XDG_STATE_HOME/flotilla or ~/.local/state/flotilla.
std::filesystem::path user_state_folder();

// A folder name for a hub, the same for every way to write its path or the address of its bucket: two hubs may
// have runs of one name.
std::string hub_folder_name(std::string_view hub);

}  // namespace flotilla
