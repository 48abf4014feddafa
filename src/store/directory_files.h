#pragma once

#include <chrono>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "store/file_descriptor.h"

namespace flotilla {

// The steps of a directory store below the level of objects: every path is walked from an open folder, one name at a
// time, and no symbolic link is followed. `where` names the place in messages.

// Splits a key into its names.
std::vector<std::string_view> split_key(std::string_view key);

// The folder `name` in `parent`; with `make`, created (and made durable) when missing. not_found; invalid_argument when
// it is an object; permission_denied when it is a link.
Result<FileDescriptor> open_subfolder(int parent, std::string_view name, bool make, std::string_view where);

// The regular file `name` in `folder`, for reading, and its size. not_found, also when it is a folder.
struct OpenFile {
  FileDescriptor fd;
  std::uint64_t size = 0;
};
Result<OpenFile> open_regular(int folder, const std::string& name, std::string_view where);
// `length` bytes from `offset`; the caller has checked that the file has them.
Result<Bytes> read_at(int fd, std::uint64_t offset, std::uint64_t length, std::string_view where);

// Makes a folder's entries durable.
Status sync_folder(int folder, std::string_view where);

// A new, empty file under a name of its own in `folder`; locked as long as it is open, so that remove_stale_files knows
// that its writer lives.
struct PartialFile {
  FileDescriptor fd;
  std::string name;
};
Result<PartialFile> create_partial(int folder, std::string_view where);
Status append(int fd, ByteSpan bytes, std::string_view where);
// Makes a file's bytes durable.
Status sync_file(int fd, std::string_view where);
// Removes files older than `age` whose writer is gone. Best effort.
void remove_stale_files(int folder, std::chrono::seconds age);

// Takes the lock file exclusively, between processes and threads; dropped when the result closes. deadline_exceeded
// after `patience`.
Result<FileDescriptor> take_lock(int folder, const char* name, std::chrono::seconds patience, std::string_view where);

}  // namespace flotilla
