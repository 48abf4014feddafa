#include "hub/folder_lock.h"

#include <fmt/format.h>

#include "base/log.h"
#include "store/directory_tree.h"

namespace flotilla {
namespace {

constexpr const char* kHubLock = "hub";

}  // namespace

Result<FileDescriptor> lock_hub_folder(const std::string& root, std::chrono::seconds patience) {
  const auto own = DirectoryTree(root).open_own_folder("");
  auto lock = own.ok() ? take_lock(own->get(), kHubLock, patience, root) : Result<FileDescriptor>(own.status());
  if (lock.ok()) return lock;
  if (lock.status().code() == StatusCode::kDeadlineExceeded) {
    return failed_precondition(fmt::format("another hub server serves '{}'", root));
  }
  log_warning("hub", "nothing keeps a second server off '{}': {}", root, lock.status().to_string());
  return FileDescriptor();
}

}  // namespace flotilla
