#include "store/directory_tree.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <utility>

#include <fmt/format.h>

namespace flotilla {
namespace {

constexpr const char* kPartialFolder = "partial";
constexpr const char* kLockFile = "lock";
constexpr std::chrono::seconds kLockPatience{30};
constexpr std::chrono::seconds kStaleAge{600};
constexpr int kFolderAttempts = 16;  // a remove may take an empty folder away while a write is on its way into it

}  // namespace

struct DirectoryTree::Query {
  std::string_view prefix;
  std::string_view after;
  std::size_t limit;
  Depth depth;
};

DirectoryTree::Upload::~Upload() {
  if (partial_.fd.valid()) ::unlinkat(partial_folder_.get(), partial_.name.c_str(), 0);
}

DirectoryTree::DirectoryTree(std::string root) : root_(std::move(root)) {
  const auto folder = open_root();
  if (!folder.ok()) return;
  const auto own = open_subfolder(folder->get(), kStoreFolder, false, root_);
  if (!own.ok()) return;
  const auto partial = open_subfolder(own->get(), kPartialFolder, false, root_);
  if (partial.ok()) remove_stale_files(partial->get(), kStaleAge);
}

Result<DirectoryTree::Upload> DirectoryTree::begin(std::string_view key) const {
  FLOTILLA_RETURN_IF_ERROR(check_key(key));
  Upload upload;
  FLOTILLA_ASSIGN_OR_RETURN(upload.own_folder_, open_own_folder(key));
  FLOTILLA_ASSIGN_OR_RETURN(upload.partial_folder_,
                            open_subfolder(upload.own_folder_.get(), kPartialFolder, true, where(key)));
  FLOTILLA_ASSIGN_OR_RETURN(
      upload.partial_,
      create_partial(upload.partial_folder_.get(), where(key)).with_context(fmt::format("write to hub '{}'", root_)));
  return upload;
}

Status DirectoryTree::create(const Upload& upload, std::string_view key) const {
  FLOTILLA_RETURN_IF_ERROR(sync_file(upload.file(), where(key)));
  return commit(key, [&](int folder, const std::string& name) -> Status {
    if (::linkat(upload.partial_folder_.get(), upload.partial_.name.c_str(), folder, name.c_str(), 0) == 0)
      return ok_status();
    const int error = errno;
    if (error != EEXIST) return errno_status(error, fmt::format("create '{}'", where(key)));
    // A network file system may have lost the answer and tried again: then the name is a link to our file.
    struct stat info {};
    if (::fstat(upload.file(), &info) == 0 && info.st_nlink == 2) return ok_status();
    FLOTILLA_RETURN_IF_ERROR(check_not_folder(folder, name, key));
    return already_exists(fmt::format("'{}' exists", where(key)));
  });
}

Status DirectoryTree::replace(const Upload& upload, std::string_view key, const Allowed& allowed) const {
  FLOTILLA_RETURN_IF_ERROR(sync_file(upload.file(), where(key)));
  FLOTILLA_ASSIGN_OR_RETURN(const FileDescriptor lock,
                            take_lock(upload.own_folder_.get(), kLockFile, kLockPatience, where(key)));
  const auto current = open(key);
  if (!current.ok() && current.status().code() != StatusCode::kNotFound) return current.status();
  FLOTILLA_RETURN_IF_ERROR(allowed(current.ok() ? &*current : nullptr));
  return commit(key, [&](int folder, const std::string& name) -> Status {
    if (::renameat(upload.partial_folder_.get(), upload.partial_.name.c_str(), folder, name.c_str()) == 0)
      return ok_status();
    const int error = errno;
    FLOTILLA_RETURN_IF_ERROR(check_not_folder(folder, name, key));
    return errno_status(error, fmt::format("replace '{}'", where(key)));
  });
}

Status DirectoryTree::remove(std::string_view key) const {
  FLOTILLA_RETURN_IF_ERROR(check_key(key));
  const auto file = open(key);
  if (file.status().code() == StatusCode::kNotFound) return ok_status();
  if (!file.ok()) return file.status();
  FLOTILLA_ASSIGN_OR_RETURN(const FileDescriptor own, open_own_folder(key));
  FLOTILLA_ASSIGN_OR_RETURN(const FileDescriptor lock, take_lock(own.get(), kLockFile, kLockPatience, where(key)));

  std::vector<std::string> parts;
  for (const std::string_view part : split_key(key)) parts.emplace_back(part);
  std::vector<FileDescriptor> folders;
  FLOTILLA_ASSIGN_OR_RETURN(FileDescriptor root, open_root());
  folders.push_back(std::move(root));
  for (std::size_t i = 0; i + 1 < parts.size(); ++i) {
    auto next = open_subfolder(folders.back().get(), parts[i], false, where(key));
    if (next.status().code() == StatusCode::kNotFound) return ok_status();
    if (!next.ok()) return next.status();
    folders.push_back(*std::move(next));
  }
  if (::unlinkat(folders.back().get(), parts.back().c_str(), 0) != 0 && errno != ENOENT) {
    return errno_status(errno, fmt::format("remove '{}'", where(key)));
  }
  FLOTILLA_RETURN_IF_ERROR(sync_folder(folders.back().get(), where(key)));
  // Empty folders are nobody's objects. The first one that is not empty ends this.
  for (std::size_t i = folders.size() - 1; i > 0; --i) {
    if (::unlinkat(folders[i - 1].get(), parts[i - 1].c_str(), AT_REMOVEDIR) != 0) break;
  }
  return ok_status();
}

Result<OpenFile> DirectoryTree::open(std::string_view key) const {
  FLOTILLA_RETURN_IF_ERROR(check_key(key));
  std::vector<std::string_view> parts = split_key(key);
  const std::string name(parts.back());
  parts.pop_back();
  FLOTILLA_ASSIGN_OR_RETURN(FileDescriptor root, open_root());
  auto folder = walk(std::move(root), parts, false, key);
  const StatusCode code = folder.status().code();
  if (code == StatusCode::kNotFound || code == StatusCode::kInvalidArgument) {
    return not_found(fmt::format("'{}' does not exist", where(key)));
  }
  if (!folder.ok()) return folder.status();
  return open_regular(folder->get(), name, where(key));
}

Result<DirectoryTree::Page> DirectoryTree::list(std::string_view prefix, std::string_view after, std::size_t limit,
                                                Depth depth) const {
  FLOTILLA_RETURN_IF_ERROR(check_list_arguments(prefix, limit));
  // From the deepest folder that holds everything under the prefix.
  const std::size_t slash = prefix.rfind('/');
  const std::string base(slash == prefix.npos ? "" : prefix.substr(0, slash + 1));
  FLOTILLA_ASSIGN_OR_RETURN(FileDescriptor folder, open_root());
  if (!base.empty()) {
    auto below = walk(std::move(folder), split_key(prefix.substr(0, slash)), false, prefix);
    const StatusCode code = below.status().code();
    if (code == StatusCode::kNotFound || code == StatusCode::kInvalidArgument) return Page{};
    if (!below.ok()) return below.status();
    folder = *std::move(below);
  }
  Page page;
  FLOTILLA_RETURN_IF_ERROR(collect(std::move(folder), base, {prefix, after, limit, depth}, page.entries));
  if (page.entries.size() > limit) {
    page.entries.resize(limit);
    page.next = page.entries.back().key;
  }
  return page;
}

std::string DirectoryTree::where(std::string_view key) const { return fmt::format("{}/{}", root_, key); }

Result<FileDescriptor> DirectoryTree::open_root() const {
  FileDescriptor root(::open(root_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (root.valid()) return root;
  // Not "not found": an object that is missing and a hub that is away are different things.
  const Status status = errno_status(errno, fmt::format("open hub folder '{}'", root_));
  return status.code() == StatusCode::kNotFound ? unavailable(status.message()) : status;
}

Result<FileDescriptor> DirectoryTree::open_own_folder(std::string_view key) const {
  FLOTILLA_ASSIGN_OR_RETURN(const FileDescriptor root, open_root());
  return open_subfolder(root.get(), kStoreFolder, true, where(key))
      .with_context(fmt::format("write to hub '{}'", root_));
}

Result<FileDescriptor> DirectoryTree::walk(FileDescriptor folder, const std::vector<std::string_view>& parts, bool make,
                                           std::string_view key) const {
  for (const std::string_view part : parts) {
    FLOTILLA_ASSIGN_OR_RETURN(folder, open_subfolder(folder.get(), part, make, where(key)));
  }
  return folder;
}

// Calls `place` in the object's folder and makes the new name durable.
Status DirectoryTree::commit(std::string_view key,
                             const std::function<Status(int folder, const std::string& name)>& place) const {
  std::vector<std::string_view> parts = split_key(key);
  const std::string name(parts.back());
  parts.pop_back();
  Status status;
  for (int attempt = 0; attempt < kFolderAttempts; ++attempt) {
    FLOTILLA_ASSIGN_OR_RETURN(FileDescriptor root, open_root());
    const auto folder = walk(std::move(root), parts, true, key);
    status = folder.ok() ? place(folder->get(), name) : folder.status();
    if (status.ok()) return sync_folder(folder->get(), where(key));
    if (status.code() != StatusCode::kNotFound) return status;
  }
  return unavailable(status.message());
}

Status DirectoryTree::check_not_folder(int folder, const std::string& name, std::string_view key) const {
  struct stat info {};
  if (::fstatat(folder, name.c_str(), &info, AT_SYMLINK_NOFOLLOW) == 0 && S_ISDIR(info.st_mode)) {
    return invalid_argument(fmt::format("'{}' is a folder, not an object", where(key)));
  }
  return ok_status();
}

// Appends what is below `folder`, whose own key is `base`, in byte order; stops one past the limit.
Status DirectoryTree::collect(FileDescriptor folder, const std::string& base, const Query& query,
                              std::vector<Entry>& out) const {
  std::vector<std::string> found;  // names; folders with '/', so that they sort as the keys below them do
  const int fd = folder.get();
  const std::unique_ptr<DIR, int (*)(DIR*)> entries(::fdopendir(fd), &::closedir);
  if (!entries) return errno_status(errno, fmt::format("list '{}'", where(base)));
  folder.release();
  while (true) {
    errno = 0;
    const dirent* entry = ::readdir(entries.get());
    if (entry == nullptr && errno != 0) return errno_status(errno, fmt::format("list '{}'", where(base)));
    if (entry == nullptr) break;
    std::string key = base + entry->d_name;
    if (!check_key(key).ok()) continue;
    struct stat info {};
    const bool known = entry->d_type != DT_UNKNOWN;
    if (!known && ::fstatat(fd, entry->d_name, &info, AT_SYMLINK_NOFOLLOW) != 0) continue;
    if (known ? entry->d_type == DT_DIR : S_ISDIR(info.st_mode)) {
      key += '/';
      const bool overlaps = key.starts_with(query.prefix) || query.prefix.starts_with(key);
      const bool told = query.depth == Depth::kOneLevel && query.after == key;
      if (!overlaps || told || (key < query.after && !query.after.starts_with(key))) continue;
      found.push_back(std::string(entry->d_name) + '/');
    } else if (key.starts_with(query.prefix) && key > query.after) {
      found.emplace_back(entry->d_name);
    }
  }
  std::sort(found.begin(), found.end());
  for (const std::string& name : found) {
    if (out.size() > query.limit) break;
    if (!name.ends_with('/')) {
      struct stat info {};
      if (::fstatat(fd, name.c_str(), &info, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISREG(info.st_mode)) continue;
      out.push_back({base + name, static_cast<std::uint64_t>(info.st_size), info.st_mtime});
      continue;
    }
    if (query.depth == Depth::kOneLevel) {
      out.push_back({base + name});
      continue;
    }
    auto below = open_subfolder(fd, std::string_view(name).substr(0, name.size() - 1), false, where(base));
    if (below.status().code() == StatusCode::kNotFound) continue;
    if (!below.ok()) return below.status();
    FLOTILLA_RETURN_IF_ERROR(collect(*std::move(below), base + name, query, out));
  }
  return ok_status();
}

}  // namespace flotilla
