#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <memory>

#include <fmt/format.h>

#include "store/directory_files.h"
#include "store/object_store.h"

namespace flotilla {
namespace {

constexpr const char* kOwnFolder = "@store";  // '@' is in no key
constexpr const char* kPartialFolder = "partial";
constexpr const char* kLockFile = "lock";
constexpr std::chrono::seconds kLockPatience{30};
constexpr std::chrono::seconds kStaleAge{600};
constexpr int kFolderAttempts = 16;  // a remove may take an empty folder away while a write is on its way into it

class DirectoryStore final : public ObjectStore {
 public:
  explicit DirectoryStore(std::string root) : root_(std::move(root)) {}

  Result<Object> get(std::string_view key) override {
    FLOTILLA_ASSIGN_OR_RETURN(const OpenFile file, open_object(key));
    FLOTILLA_ASSIGN_OR_RETURN(Bytes bytes, read_at(file.fd.get(), 0, file.size, where(key)));
    ETag etag = content_tag(bytes);
    return Object{std::move(bytes), std::move(etag)};
  }

  Result<Bytes> get_range(std::string_view key, std::uint64_t offset, std::uint64_t length) override {
    FLOTILLA_ASSIGN_OR_RETURN(const OpenFile file, open_object(key));
    if (offset > file.size) {
      return invalid_argument(fmt::format("'{}': offset {} is past the end, {}", key, offset, file.size));
    }
    return read_at(file.fd.get(), offset, std::min(length, file.size - offset), where(key));
  }

  Result<ObjectInfo> head(std::string_view key) override {
    FLOTILLA_ASSIGN_OR_RETURN(Object object, get(key));
    return ObjectInfo{std::string(key), object.bytes.size(), std::move(object.etag)};
  }

  Result<ETag> put_if_absent(std::string_view key, ByteSpan bytes) override {
    FLOTILLA_ASSIGN_OR_RETURN(const Target target, prepare(key, bytes));
    return commit(key, bytes, target, [&](int folder, const std::string& name) -> Status {
      if (::linkat(target.partial_folder.get(), target.partial.name.c_str(), folder, name.c_str(), 0) == 0)
        return ok_status();
      const int error = errno;
      if (error != EEXIST) return errno_status(error, fmt::format("create '{}'", where(key)));
      // A network file system may have lost the answer and tried again: then the name is a link to our file.
      struct stat info {};
      if (::fstat(target.partial.fd.get(), &info) == 0 && info.st_nlink == 2) return ok_status();
      FLOTILLA_RETURN_IF_ERROR(check_not_folder(folder, name, key));
      return already_exists(fmt::format("'{}' exists", where(key)));
    });
  }

  Result<ETag> put_if_match(std::string_view key, ByteSpan bytes, const ETag& expected) override {
    FLOTILLA_ASSIGN_OR_RETURN(const Target target, prepare(key, bytes));
    FLOTILLA_ASSIGN_OR_RETURN(const FileDescriptor lock, lock_store(target.own_folder.get(), key));
    const auto current = get(key);
    if (current.status().code() == StatusCode::kNotFound) {
      return failed_precondition(fmt::format("'{}' does not exist", where(key)));
    }
    if (!current.ok()) return current.status();
    if (current->etag != expected) {
      return failed_precondition(fmt::format("'{}' has the tag {}; expected {}", where(key), current->etag, expected));
    }
    return commit(key, bytes, target,
                  [&](int folder, const std::string& name) { return replace(target, folder, name, key); });
  }

  Result<ETag> put(std::string_view key, ByteSpan bytes) override {
    FLOTILLA_ASSIGN_OR_RETURN(const Target target, prepare(key, bytes));
    FLOTILLA_ASSIGN_OR_RETURN(const FileDescriptor lock, lock_store(target.own_folder.get(), key));
    return commit(key, bytes, target,
                  [&](int folder, const std::string& name) { return replace(target, folder, name, key); });
  }

  Result<ListPage> list(std::string_view prefix, std::string_view after, std::size_t limit) override {
    FLOTILLA_RETURN_IF_ERROR(check_list_arguments(prefix, limit));
    // From the deepest folder that holds everything under the prefix.
    const std::size_t slash = prefix.rfind('/');
    std::string base(slash == prefix.npos ? "" : prefix.substr(0, slash + 1));
    FLOTILLA_ASSIGN_OR_RETURN(FileDescriptor folder, open_root());
    if (!base.empty()) {
      auto below = walk(std::move(folder), split_key(prefix.substr(0, slash)), false, prefix);
      const StatusCode code = below.status().code();
      if (code == StatusCode::kNotFound || code == StatusCode::kInvalidArgument) return ListPage{};
      if (!below.ok()) return below.status();
      folder = *std::move(below);
    }
    ListPage page;
    FLOTILLA_RETURN_IF_ERROR(collect(std::move(folder), base, {prefix, after, limit}, page.objects));
    if (page.objects.size() > limit) {
      page.objects.resize(limit);
      page.next = page.objects.back().key;
    }
    return page;
  }

  Status remove(std::string_view key) override {
    FLOTILLA_RETURN_IF_ERROR(check_key(key));
    const auto file = open_object(key);
    if (file.status().code() == StatusCode::kNotFound) return ok_status();
    if (!file.ok()) return file.status();
    FLOTILLA_ASSIGN_OR_RETURN(const FileDescriptor own, open_own_folder(key));
    FLOTILLA_ASSIGN_OR_RETURN(const FileDescriptor lock, lock_store(own.get(), key));

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

  void clean() {
    const auto root = open_root();
    if (!root.ok()) return;
    const auto own = open_subfolder(root->get(), kOwnFolder, false, root_);
    if (!own.ok()) return;
    const auto partial = open_subfolder(own->get(), kPartialFolder, false, root_);
    if (partial.ok()) remove_stale_files(partial->get(), kStaleAge);
  }

 private:
  // The bytes on disk, not yet under their name. Takes the partial file away at the end of its life.
  struct Target {
    FileDescriptor own_folder;
    FileDescriptor partial_folder;
    PartialFile partial;
    Target() = default;
    Target(Target&&) = default;
    ~Target() {
      if (partial.fd.valid()) ::unlinkat(partial_folder.get(), partial.name.c_str(), 0);
    }
  };
  struct Query {
    std::string_view prefix;
    std::string_view after;
    std::size_t limit;
  };

  std::string where(std::string_view key) const { return fmt::format("{}/{}", root_, key); }

  Result<FileDescriptor> open_root() const {
    FileDescriptor root(::open(root_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (root.valid()) return root;
    // Not "not found": an object that is missing and a hub that is away are different things.
    const Status status = errno_status(errno, fmt::format("open hub folder '{}'", root_));
    return status.code() == StatusCode::kNotFound ? unavailable(status.message()) : status;
  }

  Result<FileDescriptor> walk(FileDescriptor folder, const std::vector<std::string_view>& parts, bool make,
                              std::string_view key) const {
    for (const std::string_view part : parts) {
      FLOTILLA_ASSIGN_OR_RETURN(folder, open_subfolder(folder.get(), part, make, where(key)));
    }
    return folder;
  }

  Result<OpenFile> open_object(std::string_view key) const {
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

  Result<FileDescriptor> open_own_folder(std::string_view key) const {
    FLOTILLA_ASSIGN_OR_RETURN(const FileDescriptor root, open_root());
    return open_subfolder(root.get(), kOwnFolder, true, where(key))
        .with_context(fmt::format("write to hub '{}'", root_));
  }

  Result<FileDescriptor> lock_store(int own_folder, std::string_view key) const {
    return take_lock(own_folder, kLockFile, kLockPatience, where(key));
  }

  Result<Target> prepare(std::string_view key, ByteSpan bytes) const {
    FLOTILLA_RETURN_IF_ERROR(check_key(key));
    Target target;
    FLOTILLA_ASSIGN_OR_RETURN(target.own_folder, open_own_folder(key));
    FLOTILLA_ASSIGN_OR_RETURN(target.partial_folder,
                              open_subfolder(target.own_folder.get(), kPartialFolder, true, where(key)));
    FLOTILLA_ASSIGN_OR_RETURN(target.partial, write_partial(target.partial_folder.get(), bytes, where(key))
                                                  .with_context(fmt::format("write to hub '{}'", root_)));
    return target;
  }

  // Calls `place(folder, name)` in the object's folder and makes the new name durable.
  template <typename Place>
  Result<ETag> commit(std::string_view key, ByteSpan bytes, const Target&, Place place) const {
    std::vector<std::string_view> parts = split_key(key);
    const std::string name(parts.back());
    parts.pop_back();
    Status status;
    for (int attempt = 0; attempt < kFolderAttempts; ++attempt) {
      FLOTILLA_ASSIGN_OR_RETURN(FileDescriptor root, open_root());
      auto folder = walk(std::move(root), parts, true, key);
      status = folder.ok() ? place(folder->get(), name) : folder.status();
      if (status.ok()) {
        FLOTILLA_RETURN_IF_ERROR(sync_folder(folder->get(), where(key)));
        return content_tag(bytes);
      }
      if (status.code() != StatusCode::kNotFound) return status;
    }
    return unavailable(status.message());
  }

  Status check_not_folder(int folder, const std::string& name, std::string_view key) const {
    struct stat info {};
    if (::fstatat(folder, name.c_str(), &info, AT_SYMLINK_NOFOLLOW) == 0 && S_ISDIR(info.st_mode)) {
      return invalid_argument(fmt::format("'{}' is a folder, not an object", where(key)));
    }
    return ok_status();
  }

  Status replace(const Target& target, int folder, const std::string& name, std::string_view key) const {
    if (::renameat(target.partial_folder.get(), target.partial.name.c_str(), folder, name.c_str()) == 0)
      return ok_status();
    const int error = errno;
    FLOTILLA_RETURN_IF_ERROR(check_not_folder(folder, name, key));
    return errno_status(error, fmt::format("replace '{}'", where(key)));
  }

  // Appends the keys below `folder`, whose own key is `base`, in byte order; stops one past the limit.
  Status collect(FileDescriptor folder, const std::string& base, const Query& query,
                 std::vector<ObjectInfo>& out) const {
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
        if (!overlaps || (key < query.after && !query.after.starts_with(key))) continue;
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
        out.push_back({base + name, static_cast<std::uint64_t>(info.st_size), {}});
        continue;
      }
      auto below = open_subfolder(fd, std::string_view(name).substr(0, name.size() - 1), false, where(base));
      if (below.status().code() == StatusCode::kNotFound) continue;
      if (!below.ok()) return below.status();
      FLOTILLA_RETURN_IF_ERROR(collect(*std::move(below), base + name, query, out));
    }
    return ok_status();
  }

  const std::string root_;
};

}  // namespace

Result<std::unique_ptr<ObjectStore>> open_directory_store(const std::string& root, bool create) {
  namespace fs = std::filesystem;
  std::error_code error;
  if (create) {
    fs::create_directories(root, error);
    if (error) return errno_status(error.value(), fmt::format("make hub folder '{}'", root));
  }
  const fs::path path = fs::absolute(root, error);
  const fs::file_status status = fs::status(path, error);
  if (status.type() == fs::file_type::not_found) return not_found(fmt::format("hub folder '{}' does not exist", root));
  if (error) return errno_status(error.value(), fmt::format("hub folder '{}'", root));
  if (status.type() != fs::file_type::directory) return invalid_argument(fmt::format("hub '{}' is not a folder", root));
  auto store = std::make_unique<DirectoryStore>(path.lexically_normal().string());
  store->clean();
  return std::unique_ptr<ObjectStore>(std::move(store));
}

}  // namespace flotilla
