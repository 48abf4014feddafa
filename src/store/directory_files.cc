#include "store/directory_files.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <ctime>
#include <memory>
#include <thread>

#include <fmt/format.h>

namespace flotilla {
namespace {

Status failed(int error, std::string_view what, std::string_view where) {
  // A file size limit is a full disk to those who wait for the object.
  return errno_status(error == EFBIG ? ENOSPC : error, fmt::format("{} '{}'", what, where));
}

Status why_no_folder(int parent, const std::string& name, int error, std::string_view where) {
  struct stat info {};
  if (::fstatat(parent, name.c_str(), &info, AT_SYMLINK_NOFOLLOW) == 0) {
    if (S_ISLNK(info.st_mode)) {
      return permission_denied(
          fmt::format("'{}': '{}' is a symbolic link, which the store does not follow", where, name));
    }
    if (!S_ISDIR(info.st_mode))
      return invalid_argument(fmt::format("'{}': '{}' is an object, not a folder", where, name));
  }
  return failed(error, "open folder of", where);
}

}  // namespace

std::vector<std::string_view> split_key(std::string_view key) {
  std::vector<std::string_view> parts;
  for (std::size_t end; (end = key.find('/')) != key.npos; key.remove_prefix(end + 1))
    parts.push_back(key.substr(0, end));
  parts.push_back(key);
  return parts;
}

Result<FileDescriptor> open_subfolder(int parent, std::string_view part, bool make, std::string_view where) {
  const std::string name(part);
  constexpr int kFlags = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;
  FileDescriptor folder(::openat(parent, name.c_str(), kFlags));
  if (folder.valid()) return folder;
  if (errno != ENOENT || !make) return why_no_folder(parent, name, errno, where);
  if (::mkdirat(parent, name.c_str(), 0777) == 0) {
    FLOTILLA_RETURN_IF_ERROR(sync_folder(parent, where));
  } else if (errno != EEXIST) {
    return failed(errno, "make folder of", where);
  }
  folder = FileDescriptor(::openat(parent, name.c_str(), kFlags));
  if (!folder.valid()) return why_no_folder(parent, name, errno, where);
  return folder;
}

Result<OpenFile> open_regular(int folder, const std::string& name, std::string_view where) {
  // O_NONBLOCK: opening a pipe that someone put there must not wait for its other end.
  OpenFile file;
  file.fd = FileDescriptor(::openat(folder, name.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  if (!file.fd.valid()) {
    if (errno == ENOENT) return not_found(fmt::format("'{}' does not exist", where));
    if (errno == ELOOP) {
      return permission_denied(fmt::format("'{}' is a symbolic link, which the store does not follow", where));
    }
    return failed(errno, "open", where);
  }
  struct stat info {};
  if (::fstat(file.fd.get(), &info) != 0) return failed(errno, "stat", where);
  if (S_ISDIR(info.st_mode)) return not_found(fmt::format("'{}' is a folder, not an object", where));
  if (!S_ISREG(info.st_mode)) return permission_denied(fmt::format("'{}' is not a regular file", where));
  file.size = static_cast<std::uint64_t>(info.st_size);
  return file;
}

Result<Bytes> read_at(int fd, std::uint64_t offset, std::uint64_t length, std::string_view where) {
  Bytes bytes(length);
  std::size_t done = 0;
  while (done < length) {
    const ssize_t count = ::pread(fd, bytes.data() + done, length - done, static_cast<off_t>(offset + done));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return failed(errno, "read", where);
    if (count == 0) return data_loss(fmt::format("'{}' shrank while it was read", where));
    done += static_cast<std::size_t>(count);
  }
  return bytes;
}

Status sync_folder(int folder, std::string_view where) {
  // EINVAL: a file system whose folders need no sync.
  if (::fsync(folder) != 0 && errno != EINVAL) return failed(errno, "sync folder of", where);
  return ok_status();
}

Result<PartialFile> create_partial(int folder, std::string_view where) {
  static std::atomic<std::uint64_t> counter{0};
  PartialFile file;
  while (!file.fd.valid()) {
    // Unique in this process by the counter, on this machine by the process, and elsewhere by the clock; O_EXCL
    // decides.
    struct timespec now {};
    ::clock_gettime(CLOCK_REALTIME, &now);
    file.name = fmt::format("{}-{}-{}", ::getpid(), counter++, now.tv_sec * 1'000'000'000 + now.tv_nsec);
    file.fd =
        FileDescriptor(::openat(folder, file.name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666));
    if (!file.fd.valid() && errno != EEXIST) return failed(errno, "create a file for", where);
  }
  (void)::flock(file.fd.get(), LOCK_EX | LOCK_NB);
  return file;
}

Status append(int fd, ByteSpan bytes, std::string_view where) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return failed(errno, "write", where);
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
  return ok_status();
}

Status sync_file(int fd, std::string_view where) {
  return ::fsync(fd) == 0 ? ok_status() : failed(errno, "sync", where);
}

void remove_stale_files(int folder, std::chrono::seconds age) {
  const int copy = ::openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (copy < 0) return;
  const std::unique_ptr<DIR, int (*)(DIR*)> entries(::fdopendir(copy), &::closedir);
  if (!entries) {
    ::close(copy);
    return;
  }
  while (const dirent* entry = ::readdir(entries.get())) {
    struct stat info {};
    if (::fstatat(folder, entry->d_name, &info, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISREG(info.st_mode)) continue;
    if (::time(nullptr) - info.st_mtime < age.count()) continue;
    const FileDescriptor fd(::openat(folder, entry->d_name, O_WRONLY | O_NOFOLLOW | O_CLOEXEC));
    if (fd.valid() && ::flock(fd.get(), LOCK_EX | LOCK_NB) == 0) ::unlinkat(folder, entry->d_name, 0);
  }
}

Result<FileDescriptor> take_lock(int folder, const char* name, std::chrono::seconds patience, std::string_view where) {
  FileDescriptor lock(::openat(folder, name, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0666));
  if (!lock.valid()) return failed(errno, "open the lock for", where);
  const auto deadline = std::chrono::steady_clock::now() + patience;
  auto pause = std::chrono::microseconds(50);
  while (::flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno == EINTR) continue;
    if (errno != EWOULDBLOCK) return failed(errno, "lock (does the file system have file locks?) for", where);
    if (std::chrono::steady_clock::now() > deadline) {
      return deadline_exceeded(
          fmt::format("'{}': another process has held the lock for {} s", where, patience.count()));
    }
    std::this_thread::sleep_for(pause);
    pause = std::min(pause * 2, std::chrono::microseconds(20'000));
  }
  return lock;
}

}  // namespace flotilla
