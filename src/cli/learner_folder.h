#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "base/status.h"
#include "cli/run_address.h"

namespace flotilla {

// The folder of the learner that was last started for the run on this machine; `named` when it is not empty. not_found
// when there is none.
Result<std::filesystem::path> learner_folder(const RunAddress& address, const std::string& named);

// Sends one of the learner's commands (control_socket.h). unavailable when no learner runs in the folder.
Status ask_learner(const std::filesystem::path& folder, std::string_view command);

}  // namespace flotilla
