#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "base/status.h"

namespace flotilla {

// Names a state of an object, for conditional writes. Opaque; equal tags mean equal bytes.
using ETag = std::string;

struct Object {
  Bytes bytes;
  ETag etag;
};

struct ObjectInfo {
  std::string key;
  std::uint64_t size = 0;
  ETag etag;                         // empty in listings: a folder would have to read every object for it
  std::chrono::seconds modified{0};  // in listings: since 1970, by the hub's clock; 0: not known
};

struct ListPage {
  std::vector<ObjectInfo> objects;  // in byte order of their keys
  std::string next;                 // pass as `after` for the next page; empty when this was the last one
};

// How to wait for another state of an object.
struct Watching {
  std::chrono::milliseconds time{0};      // how long; 0: looks once
  std::chrono::milliseconds look{1'000};  // between two looks, of stores that are not told of changes
  std::stop_token stop = {};
};

// The hub as all parties see it. Keys are '/'-separated names of [A-Za-z0-9._-], no empty, "." or ".." part, at most
// 255 bytes a part and 512 in all; anything else is invalid_argument. No key may continue another one ("a" and "a/b"):
// a folder cannot hold both, and says so with invalid_argument. Thread safe. A write is all or nothing and durable when
// it returns. After unavailable or deadline_exceeded a write may or may not have happened: read it back.
class ObjectStore {
 public:
  virtual ~ObjectStore() = default;

  // Whole object, or `length` bytes from `offset` (clipped at the end; an offset past it is invalid_argument).
  // not_found.
  virtual Result<Object> get(std::string_view key) = 0;
  virtual Result<Bytes> get_range(std::string_view key, std::uint64_t offset, std::uint64_t length) = 0;
  // The same, cancelled as soon as a stop is requested by stores whose reads may take long.
  virtual Result<Bytes> get_range_unless_stopped(std::string_view key, std::uint64_t offset, std::uint64_t length,
                                                 const std::stop_token& stop);
  virtual Result<ObjectInfo> head(std::string_view key) = 0;
  // The first `most` bytes of the object, as soon as its state is not `known`; nothing when it still is after the time.
  // `known` is the tag that the last call gave, which no other operation knows, or empty. cancelled on a stop.
  virtual Result<std::optional<Object>> get_when_changed(std::string_view key, const ETag& known, std::uint64_t most,
                                                         const Watching& watching);

  // Creates the object; already_exists when the key is taken, whatever its bytes.
  virtual Result<ETag> put_if_absent(std::string_view key, ByteSpan bytes) = 0;
  // Replaces the object if its tag is `expected`; failed_precondition when it is another or the object is missing.
  virtual Result<ETag> put_if_match(std::string_view key, ByteSpan bytes, const ETag& expected) = 0;
  // Creates or replaces. Only for objects with one writer (a worker's status).
  virtual Result<ETag> put(std::string_view key, ByteSpan bytes) = 0;

  // Keys that start with `prefix` (the beginning of a key, or empty) and sort after `after` (any bytes), at most
  // `limit` (1..1000). No such key is an empty page, not an error.
  virtual Result<ListPage> list(std::string_view prefix, std::string_view after = {}, std::size_t limit = 1000) = 0;
  // Removes the object; ok when it is not there.
  virtual Status remove(std::string_view key) = 0;
};

Status check_key(std::string_view key);
// What list() accepts.
Status check_list_arguments(std::string_view prefix, std::size_t limit);
// The tag of memory and directory stores: 32 hex digits of the SHA-256 of the bytes. Right between processes, where
// inode, time and size are not: an inode is used again at once, and two writes can share a time stamp.
ETag content_tag(ByteSpan bytes);

std::unique_ptr<ObjectStore> make_memory_store();
// Objects are files below `root`. With create, makes the folder; without it, a missing folder is not_found. A folder
// that cannot be written is permission_denied at the first write, never at opening; a full disk is resource_exhausted;
// a folder that goes away later is unavailable. Any number of processes may share it. Symbolic links below the root are
// never followed. Its own files are below `root`/@store, which is not a key.
Result<std::unique_ptr<ObjectStore>> open_directory_store(const std::string& root, bool create);

// All objects below a prefix, page by page.
Result<std::vector<ObjectInfo>> list_all(ObjectStore& store, std::string_view prefix);

}  // namespace flotilla
