#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/hashing.h"
#include "hub/s3_xml.h"
#include "store/directory_tree.h"

namespace flotilla {

// All of a file to the end of another one, and to a hash.
Status append_all(const OpenFile& source, int file, Sha256& hash, std::string_view where);

// Uploads in parts, below `root`/@store/uploads: a folder an upload, with a file `@about` that says whose it is and for
// which key, and one file a part, named by number and SHA-256. They outlive the server. Thread safe.
class MultipartUploads {
 public:
  explicit MultipartUploads(const DirectoryTree& tree) : tree_(tree) {}

  Result<std::string> start(std::string_view key, std::string_view token);
  // not_found unless the upload is there, of this token and for this key.
  Status check(std::string_view id, std::string_view key, std::string_view token) const;

  // A part on its way: append to `file`, then finish_part. Without that it goes away.
  class Part {
   public:
    Part() = default;
    Part(Part&&) = default;
    Part& operator=(Part&&) = delete;
    ~Part();
    int file() const { return partial_.fd.get(); }

   private:
    friend class MultipartUploads;
    FileDescriptor folder_;
    PartialFile partial_;
  };
  Result<Part> begin_part(std::string_view id) const;
  Status finish_part(Part& part, int number, const Sha256Digest& digest) const;

  struct Known {
    int number = 0;
    std::string etag;
    std::uint64_t size = 0;
    std::time_t modified = 0;
  };
  Result<std::vector<Known>> parts(std::string_view id) const;
  // The parts one after another into a file; what they make has the digest. invalid_argument when one is not there.
  Result<Sha256Digest> join(std::string_view id, const std::vector<CompletedPart>& parts, int file) const;
  Status abort(std::string_view id) const;

  struct Open {
    std::string id;
    std::string key;
    std::string token;
    std::uint64_t bytes = 0;
    std::time_t started = 0;
  };
  Result<std::vector<Open>> list() const;

 private:
  Result<FileDescriptor> folder(bool make) const;
  Result<FileDescriptor> open_upload(std::string_view id) const;

  const DirectoryTree& tree_;
};

}  // namespace flotilla
