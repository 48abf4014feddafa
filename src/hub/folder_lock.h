#pragma once

#include <string>

#include "base/status.h"
#include "store/file_descriptor.h"

namespace flotilla {

// Keeps a second server off a hub's folder as long as the result lives: rates, quotas and signatures that were used are
// one process's. failed_precondition when another serves it. Of a folder that cannot be written there is no lock: the
// result is not valid.
Result<FileDescriptor> lock_hub_folder(const std::string& root);

}  // namespace flotilla
