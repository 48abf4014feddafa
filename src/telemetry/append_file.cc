#include "telemetry/append_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>

namespace flotilla {

Result<std::unique_ptr<AppendFile>> AppendFile::create(const std::filesystem::path& path) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0644);
  if (fd < 0) return errno_status(errno, "create " + path.string());
  return std::unique_ptr<AppendFile>(new AppendFile(path, fd));
}

AppendFile::~AppendFile() { ::close(fd_); }

Status AppendFile::append(std::string_view text) {
  std::size_t done = 0;
  while (done < text.size()) {
    const ssize_t written = ::write(fd_, text.data() + done, text.size() - done);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) {
      Status status = errno_status(errno, "write " + path_.string());
      if (done > 0 && ::ftruncate(fd_, static_cast<off_t>(size_)) != 0) {
        return data_loss(status.message() + "; cutting off the torn piece failed too");
      }
      return status;
    }
    done += static_cast<std::size_t>(written);
  }
  size_ += text.size();
  return ok_status();
}

Status AppendFile::sync() { return ::fsync(fd_) == 0 ? ok_status() : errno_status(errno, "fsync " + path_.string()); }

Result<std::unique_ptr<FolderLock>> FolderLock::acquire(const std::filesystem::path& folder) {
  const std::filesystem::path path = folder / "lock";
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (fd < 0) return errno_status(errno, "open " + path.string());
  if (::flock(fd, LOCK_EX | LOCK_NB) != 0) {
    const int error = errno;
    ::close(fd);
    if (error == EWOULDBLOCK) return failed_precondition(folder.string() + " is in use by another process");
    return errno_status(error, "lock " + path.string());
  }
  return std::unique_ptr<FolderLock>(new FolderLock(fd));
}

FolderLock::~FolderLock() { ::close(fd_); }

}  // namespace flotilla
