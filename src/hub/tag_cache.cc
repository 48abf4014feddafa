#include "hub/tag_cache.h"

#include <algorithm>
#include <cerrno>
#include <ctime>

#include <fmt/format.h>

#include "base/hashing.h"

namespace flotilla {
namespace {

constexpr std::size_t kEntriesMax = 65536;
constexpr std::uint64_t kPieceBytes = 256 << 10;
// Two files of one inode can have the same times only within one tick of the file system's clock; the coarsest ones in
// use tick once in two seconds.
constexpr std::time_t kTickSeconds = 2;

}  // namespace

Result<std::string> TagCache::tag_of(const OpenFile& file, std::string_view where) {
  struct stat info {};
  if (::fstat(file.fd.get(), &info) != 0) return errno_status(errno, fmt::format("look at '{}'", where));
  const Identity identity{info.st_dev,          info.st_ino,         file.size,           info.st_mtim.tv_sec,
                          info.st_mtim.tv_nsec, info.st_ctim.tv_sec, info.st_ctim.tv_nsec};
  {
    const std::lock_guard lock(mutex_);
    if (const auto entry = entries_.find(identity); entry != entries_.end()) {
      uses_.splice(uses_.begin(), uses_, entry->second.use);
      return entry->second.tag;
    }
  }
  const bool settled = std::time(nullptr) - info.st_ctim.tv_sec > kTickSeconds;
  Sha256 hash;
  for (std::uint64_t offset = 0; offset < file.size; offset += kPieceBytes) {
    FLOTILLA_ASSIGN_OR_RETURN(const Bytes piece,
                              read_at(file.fd.get(), offset, std::min(kPieceBytes, file.size - offset), where));
    hash.update(piece);
  }
  std::string tag = hash.finish().to_hex();
  if (!settled) return tag;
  const std::lock_guard lock(mutex_);
  if (entries_.contains(identity)) return tag;
  uses_.push_front(identity);
  entries_[identity] = {tag, uses_.begin()};
  if (entries_.size() > kEntriesMax) {
    entries_.erase(uses_.back());
    uses_.pop_back();
  }
  return tag;
}

}  // namespace flotilla
