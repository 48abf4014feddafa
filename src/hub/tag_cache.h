#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <list>
#include <map>
#include <mutex>
#include <string>
#include <tuple>

#include "store/directory_files.h"

namespace flotilla {

// Tags of files: the SHA-256 of the content in hex. Objects are never edited in place, so that a file's inode, size and
// times name its content, once they are too old to be given to another file (docs/design/hub.md). Thread safe.
class TagCache {
 public:
  Result<std::string> tag_of(const OpenFile& file, std::string_view where);

 private:
  using Identity =
      std::tuple<std::uint64_t, std::uint64_t, std::uint64_t, std::int64_t, std::int64_t, std::int64_t, std::int64_t>;
  struct Entry {
    std::string tag;
    std::list<Identity>::iterator use;
  };
  std::mutex mutex_;
  std::map<Identity, Entry> entries_;
  std::list<Identity> uses_;  // latest first
};

}  // namespace flotilla
