#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string_view>

#include "base/status.h"

namespace flotilla {

// A new file that grows by whole pieces. One thread.
class AppendFile {
 public:
  // already_exists when there is such a file.
  static Result<std::unique_ptr<AppendFile>> create(const std::filesystem::path& path);
  ~AppendFile();
  AppendFile(const AppendFile&) = delete;
  AppendFile& operator=(const AppendFile&) = delete;

  // All or nothing: what a failed write left is cut off. data_loss when even that fails: the file ends in a torn piece
  // and must not be appended to.
  Status append(std::string_view text);
  Status sync();
  std::uint64_t size() const { return size_; }

 private:
  AppendFile(std::filesystem::path path, int fd) : path_(std::move(path)), fd_(fd) {}
  std::filesystem::path path_;
  int fd_;
  std::uint64_t size_ = 0;
};

// Held by one process at a time, through an flock on a file that stays. Released when the process ends, however it
// ends.
class FolderLock {
 public:
  // failed_precondition when another process, or another lock of this one, has it.
  static Result<std::unique_ptr<FolderLock>> acquire(const std::filesystem::path& folder);
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

 private:
  explicit FolderLock(int fd) : fd_(fd) {}
  int fd_;
};

}  // namespace flotilla
