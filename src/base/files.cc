#include "base/files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>

#include <fmt/format.h>

namespace flotilla {
namespace fs = std::filesystem;
namespace {

class FileDescriptor {
 public:
  explicit FileDescriptor(int fd) : fd_(fd) {}
  ~FileDescriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;
  int get() const { return fd_; }
  // Closing can report a write that failed late.
  int close() { return ::close(std::exchange(fd_, -1)); }

 private:
  int fd_;
};

// Of a regular file.
Result<struct stat> file_state(int fd, const fs::path& path) {
  struct stat info {};
  if (::fstat(fd, &info) != 0) return errno_status(errno, "stat " + path.string());
  if (!S_ISREG(info.st_mode)) return invalid_argument(path.string() + " is not a regular file");
  return info;
}

bool same_contents(const struct stat& a, const struct stat& b) {
  return a.st_size == b.st_size && a.st_mtim.tv_sec == b.st_mtim.tv_sec && a.st_mtim.tv_nsec == b.st_mtim.tv_nsec;
}

Status write_all(int fd, ByteSpan bytes, const fs::path& path) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return errno_status(errno, "write " + path.string());
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
  return ok_status();
}

Status sync_folder(const fs::path& folder) {
  const FileDescriptor fd(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (fd.get() < 0 || ::fsync(fd.get()) != 0) return errno_status(errno, "fsync " + folder.string());
  return ok_status();
}

template <typename Container>
Result<Container> read_into(const fs::path& path, bool settled = false) {
  const FileDescriptor fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (fd.get() < 0) return errno_status(errno, "open " + path.string());
  FLOTILLA_ASSIGN_OR_RETURN(const struct stat before, file_state(fd.get(), path));
  const auto size = static_cast<std::size_t>(before.st_size);
  Container content(size, 0);
  std::size_t done = 0;
  while (true) {
    if (done == content.size()) {
      if (size > 0) break;
      content.resize(done + 4096);  // files of /proc say that they are empty
    }
    const ssize_t count = ::read(fd.get(), content.data() + done, content.size() - done);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return errno_status(errno, "read " + path.string());
    if (count == 0) break;
    done += static_cast<std::size_t>(count);
  }
  content.resize(done);
  if (!settled) return content;
  FLOTILLA_ASSIGN_OR_RETURN(const struct stat after, file_state(fd.get(), path));
  if (done != size || !same_contents(before, after)) return unavailable(path.string() + " changed while it was read");
  return content;
}

}  // namespace

Result<Bytes> read_file(const fs::path& path) { return read_into<Bytes>(path); }
Result<Bytes> read_settled_file(const fs::path& path) { return read_into<Bytes>(path, true); }
Result<std::string> read_text_file(const fs::path& path) { return read_into<std::string>(path); }

Status write_file_atomically(const fs::path& path, ByteSpan bytes) {
  return write_file_atomically(path, std::span<const ByteSpan>(&bytes, 1));
}

Status write_file_atomically(const fs::path& path, std::span<const ByteSpan> pieces) {
  const fs::path folder = path.has_parent_path() ? path.parent_path() : fs::path(".");
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) return errno_status(error.value(), "create folder " + folder.string());

  static std::atomic<std::uint64_t> counter{0};
  const fs::path temporary = folder / fmt::format(".{}.{}.{}.partial", path.filename().string(), ::getpid(), counter++);
  FileDescriptor fd(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644));
  if (fd.get() < 0) return errno_status(errno, "create " + temporary.string());

  Status status;
  for (std::size_t i = 0; i < pieces.size() && status.ok(); ++i) status = write_all(fd.get(), pieces[i], temporary);
  if (status.ok() && ::fsync(fd.get()) != 0) status = errno_status(errno, "fsync " + temporary.string());
  if (fd.close() != 0 && status.ok()) status = errno_status(errno, "close " + temporary.string());
  if (status.ok() && ::rename(temporary.c_str(), path.c_str()) != 0)
    status = errno_status(errno, "rename to " + path.string());
  if (!status.ok()) {
    ::unlink(temporary.c_str());
    return status;
  }
  return sync_folder(folder);
}

TemporaryFolder::TemporaryFolder() {
  std::string pattern = (fs::temp_directory_path() / "flotilla-XXXXXX").string();
  FLOTILLA_CHECK(::mkdtemp(pattern.data()) != nullptr);
  path_ = pattern;
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

}  // namespace flotilla
