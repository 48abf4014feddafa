#pragma once

#include <ctime>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "store/directory_files.h"
#include "store/object_store.h"

namespace flotilla {

inline constexpr const char* kStoreFolder = "@store";  // a directory hub's own files; '@' is in no key

// The objects of a directory hub as files, for those who stream: DirectoryStore is this in whole objects, with the same
// promises. Thread safe; any number of processes may share the folder.
class DirectoryTree {
 public:
  // The folder has to exist. Removes what dead writers have left.
  explicit DirectoryTree(std::string root);

  // An object on its way: bytes are appended to `file()`, and create or replace give it a name. Goes away without one.
  class Upload {
   public:
    Upload() = default;
    Upload(Upload&&) = default;
    Upload& operator=(Upload&&) = delete;
    ~Upload();
    int file() const { return partial_.fd.get(); }

   private:
    friend class DirectoryTree;
    FileDescriptor own_folder_;
    FileDescriptor partial_folder_;
    PartialFile partial_;
  };
  // `key` is checked; the object gets it from create or replace.
  Result<Upload> begin(std::string_view key) const;
  // already_exists when the key is taken.
  Status create(const Upload& upload, std::string_view key) const;
  // Creates or replaces if `allowed` says so of the present object, or of nullptr where there is none. No other
  // replacement or removal happens between.
  using Allowed = std::function<Status(const OpenFile*)>;
  Status replace(const Upload& upload, std::string_view key, const Allowed& allowed) const;
  // Ok when it is not there.
  Status remove(std::string_view key) const;

  Result<OpenFile> open(std::string_view key) const;

  struct Entry {
    std::string key;
    std::uint64_t size = 0;
    std::time_t modified = 0;
  };
  struct Page {
    std::vector<Entry> entries;  // in byte order of their keys
    std::string next;            // pass as `after` for the next page; empty when this was the last one
  };
  enum class Depth {
    kAll,
    kOneLevel
  };  // one level: what continues behind a '/' past the prefix is one entry, up to it
  Result<Page> list(std::string_view prefix, std::string_view after, std::size_t limit, Depth depth) const;

  // What messages call an object.
  std::string where(std::string_view key) const;
  Result<FileDescriptor> open_root() const;
  // `root`/@store, made when missing.
  Result<FileDescriptor> open_own_folder(std::string_view key) const;

 private:
  struct Query;

  Result<FileDescriptor> walk(FileDescriptor folder, const std::vector<std::string_view>& parts, bool make,
                              std::string_view key) const;
  Status commit(std::string_view key, const std::function<Status(int folder, const std::string& name)>& place) const;
  Status check_not_folder(int folder, const std::string& name, std::string_view key) const;
  Status collect(FileDescriptor folder, const std::string& base, const Query& query, std::vector<Entry>& out) const;

  const std::string root_;
};

}  // namespace flotilla
