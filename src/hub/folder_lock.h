#pragma once

#include <chrono>
#include <string>

#include "base/status.h"
#include "store/file_descriptor.h"

namespace flotilla {

// Keeps a second server off a hub's folder as long as the result lives: rates, quotas and signatures that were used are
// one process's. failed_precondition when another serves it. Of a folder that cannot be written there is no lock: the
// result is not valid. Waits for `patience`: a server that was killed may still be on its way out.
Result<FileDescriptor> lock_hub_folder(const std::string& root,
                                       std::chrono::seconds patience = std::chrono::seconds(2));

}  // namespace flotilla
