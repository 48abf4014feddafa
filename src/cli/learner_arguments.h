#pragma once

#include <string>
#include <vector>

#include "base/status.h"

namespace flotilla {

// What `flotilla learn ARGUMENTS` passes to flotilla-learner: HUB/OWNER/RUN, wherever it stands among them, becomes
// --run.hub and --run.name; the rest goes on unchanged. kInvalidArgument for a second RUN or one that is none.
Result<std::vector<std::string>> learner_arguments(const std::vector<std::string>& arguments);

}  // namespace flotilla
