#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "hub/checksums.h"
#include "hub/s3_error.h"
#include "store/sigv4.h"

namespace flotilla {

enum class S3Operation {
  kListBuckets,
  kHeadBucket,
  kCreateBucket,
  kBucketLocation,
  kList,
  kDeleteObjects,
  kGet,
  kHead,
  kPut,
  kDelete,
  kStartUpload,
  kUploadPart,
  kListParts,
  kCompleteUpload,
  kAbortUpload,
  kListUploads,
  kCopy,
};
inline constexpr int kS3Operations = 17;
// "PutObject"
std::string_view s3_operation_name(S3Operation operation);

struct S3Listing {
  int form = 2;  // ListObjectsV2, or 1: ListObjects
  std::string prefix;
  std::string after;  // of start-after, continuation-token or marker the last one that is given
  std::string start_after;
  std::string continuation;
  bool one_level = false;  // delimiter "/"
  bool url_encoded = false;
  std::size_t limit = 1000;
};

// `first` to `last`, both included; without `first` the last `last` bytes; without `last` to the end.
struct ByteRange {
  std::optional<std::uint64_t> first;
  std::optional<std::uint64_t> last;
};

struct S3Body {
  std::uint64_t bytes = 0;  // of what it means
  bool chunked = false;     // as aws-chunked
  std::vector<Checksum> checksums;
  std::string trailer;  // the checksum's name that comes behind the last chunk; empty: none
};

struct S3Request {
  S3Operation operation = S3Operation::kGet;
  std::string owner;        // the bucket
  std::string key;          // "<owner>/<run>/...", as in the folder; empty without an object
  S3Listing listing;        // of uploads only the prefix
  std::string copy_source;  // a key
  std::string upload_id;
  int part_number = 0;
  std::optional<std::string> if_match;  // lists of tags as they were sent
  std::optional<std::string> if_none_match;
  std::optional<ByteRange> range;
  std::chrono::seconds wait{0};  // how long a GET whose If-None-Match holds waits for another state
  S3Body body;
};

inline constexpr std::chrono::seconds kWaitMax{60};
inline constexpr int kPartNumberMax = 10000;

// What a request asks for, path-style. `raw_path` is the path as it came. Whatever is accepted has a key that
// check_key accepts, and nothing of it that would change its result is ignored: NotImplemented instead.
S3Result<S3Request> parse_s3_request(const SigV4Request& request, std::string_view raw_path);

// The value of a header, empty when it is missing. Names in lower case.
std::string_view header_of(const SigV4Request& request, std::string_view name);

// A list of tags ("a", "b" or *) names the tag; of an object that is not there an empty one is given.
bool names_tag(std::string_view list, std::string_view tag);

// The bytes that a range means of an object of `size`: offset and count; nothing when it is outside.
struct ByteSection {
  std::uint64_t offset = 0;
  std::uint64_t count = 0;
};
std::optional<ByteSection> section_of(const ByteRange& range, std::uint64_t size);

}  // namespace flotilla
