#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

#include "base/bytes.h"

namespace flotilla {

// Whole file into memory. not_found, permission_denied, invalid_argument (a folder) as the system says; the path is in
// the message.
Result<Bytes> read_file(const std::filesystem::path& path);
// The same; unavailable when the file changed meanwhile.
Result<Bytes> read_settled_file(const std::filesystem::path& path);
Result<std::string> read_text_file(const std::filesystem::path& path);

// Replaces the file so that a reader, or the next start after a crash, finds the old or the new bytes and nothing else:
// a temporary file beside it, fsync, rename, fsync of the folder. Makes missing parent folders.
Status write_file_atomically(const std::filesystem::path& path, ByteSpan bytes);
// The pieces one after another, without a copy in memory.
Status write_file_atomically(const std::filesystem::path& path, std::span<const ByteSpan> pieces);
inline Status write_file_atomically(const std::filesystem::path& path, std::string_view text) {
  return write_file_atomically(path, as_bytes(text));
}

// A folder of its own that is deleted, with its contents, at the end of the scope. For tests and scratch space.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace flotilla
