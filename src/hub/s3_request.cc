#include "hub/s3_request.h"

#include <algorithm>
#include <charconv>
#include <set>

#include <fmt/format.h>

#include "store/object_store.h"

namespace flotilla {
namespace {

// Parameters that change what is asked for, and those that say nothing to us.
constexpr std::string_view kIgnoredParameters[] = {"x-id", "fetch-owner"};
// What would change an object in a way that is not done here.
constexpr std::string_view kRefusedHeaders[] = {
    "x-amz-copy-source-if-match",
    "x-amz-copy-source-if-none-match",
    "x-amz-copy-source-if-modified-since",
    "x-amz-copy-source-if-unmodified-since",
    "x-amz-copy-source-server-side-encryption-customer-algorithm",
    "x-amz-server-side-encryption",
    "x-amz-server-side-encryption-customer-algorithm",
    "x-amz-tagging",
    "x-amz-object-lock-mode",
    "x-amz-object-lock-legal-hold",
    "x-amz-website-redirect-location",
    "x-amz-write-offset-bytes",
    "if-unmodified-since",
};

S3Error error(int status, const char* code, std::string message) { return {status, code, std::move(message)}; }
S3Error not_implemented(std::string_view what) {
  return error(501, "NotImplemented", fmt::format("{} is not done here; docs/hub.md lists what is", what));
}

std::optional<std::uint64_t> number(std::string_view text) {
  std::uint64_t value = 0;
  const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || failed != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::string_view trimmed(std::string_view text) {
  const auto blank = [](char c) { return c == ' ' || c == '\t'; };
  while (!text.empty() && blank(text.front())) text.remove_prefix(1);
  while (!text.empty() && blank(text.back())) text.remove_suffix(1);
  return text;
}

// Anything that is not one range of bytes is ignored, as HTTP wants it.
std::optional<ByteRange> read_range(std::string_view text) {
  constexpr std::string_view kUnit = "bytes=";
  if (!text.starts_with(kUnit)) return std::nullopt;
  text = trimmed(text.substr(kUnit.size()));
  const std::size_t dash = text.find('-');
  if (dash == text.npos) return std::nullopt;
  const std::string_view first = text.substr(0, dash), last = text.substr(dash + 1);
  ByteRange range{number(first), number(last)};
  if ((!first.empty() && !range.first) || (!last.empty() && !range.last) || (!range.first && !range.last) ||
      (range.first && range.last && *range.last < *range.first)) {
    return std::nullopt;
  }
  return range;
}

// RFC 7240: "Prefer: wait=20" among others.
std::chrono::seconds read_wait(std::string_view prefer) {
  constexpr std::string_view kWait = "wait=";
  while (!prefer.empty()) {
    const std::size_t comma = std::min(prefer.find(','), prefer.size());
    const std::string_view one = trimmed(prefer.substr(0, comma));
    if (one.starts_with(kWait)) {
      if (const auto seconds = number(one.substr(kWait.size()))) {
        return std::chrono::seconds(std::min<std::uint64_t>(*seconds, kWaitMax.count()));
      }
    }
    prefer.remove_prefix(std::min(comma + 1, prefer.size()));
  }
  return std::chrono::seconds(0);
}

// Of a copy: "/bucket/key" or "bucket/key", encoded, as a key.
S3Result<std::string> read_copy_source(std::string_view text) {
  if (text.starts_with('/')) text.remove_prefix(1);
  if (text.find('?') != text.npos) return not_implemented("a version of an object");
  const auto decoded = uri_decode(text);
  if (!decoded.ok() || !check_key(*decoded).ok() || decoded->find('/') == std::string::npos) {
    return error(400, "InvalidArgument", "x-amz-copy-source: expected BUCKET/KEY");
  }
  return *decoded;
}

std::optional<S3Error> read_body(const SigV4Request& request, bool has_body, S3Body& body) {
  // Only aws-chunked says how long it is without Content-Length.
  body.chunked = header_of(request, "x-amz-content-sha256").starts_with("STREAMING-");
  const std::string_view length = header_of(request, "content-length"),
                         coding = header_of(request, "transfer-encoding");
  const bool in_pieces = body.chunked && coding == "chunked" && has_body;
  if (!coding.empty() && !in_pieces) {
    return error(411, "MissingContentLength", "a body needs its Content-Length; only aws-chunked goes without");
  }
  if (has_body && length.empty() && !in_pieces) {
    return error(411, "MissingContentLength", "the body needs its Content-Length");
  }
  const auto bytes = length.empty() ? std::optional<std::uint64_t>(0) : number(length);
  if (!bytes) return error(400, "InvalidArgument", "Content-Length is no number");
  if (!has_body && *bytes > 0) return error(400, "InvalidRequest", "the operation has no body");
  body.bytes = *bytes;
  if (body.chunked) {
    const auto decoded = number(header_of(request, "x-amz-decoded-content-length"));
    if (!decoded) return error(411, "MissingContentLength", "x-amz-decoded-content-length is missing or no number");
    body.bytes = *decoded;
    body.trailer = header_of(request, "x-amz-trailer");
    std::ranges::transform(body.trailer, body.trailer.begin(),
                           [](char c) { return c >= 'A' && c <= 'Z' ? c | 0x20 : c; });
    if (!body.trailer.empty() && !checksum_kind(body.trailer)) return not_implemented("x-amz-trailer " + body.trailer);
  }
  for (const auto& [name, value] : request.headers) {
    const auto kind = checksum_kind(name);
    if (kind) {
      body.checksums.push_back({*kind, value});
    } else if (name.starts_with("x-amz-checksum-") && name != "x-amz-checksum-algorithm" &&
               name != "x-amz-checksum-mode" && name != "x-amz-checksum-type") {
      return not_implemented(name);
    }
  }
  return std::nullopt;
}

}  // namespace

std::string_view s3_operation_name(S3Operation operation) {
  static constexpr std::string_view kNames[kS3Operations] = {"ListBuckets",
                                                             "HeadBucket",
                                                             "CreateBucket",
                                                             "GetBucketLocation",
                                                             "ListObjects",
                                                             "DeleteObjects",
                                                             "GetObject",
                                                             "HeadObject",
                                                             "PutObject",
                                                             "DeleteObject",
                                                             "CreateMultipartUpload",
                                                             "UploadPart",
                                                             "ListParts",
                                                             "CompleteMultipartUpload",
                                                             "AbortMultipartUpload",
                                                             "ListMultipartUploads",
                                                             "CopyObject"};
  return kNames[static_cast<std::size_t>(operation)];
}

std::string_view header_of(const SigV4Request& request, std::string_view name) {
  for (const auto& [key, value] : request.headers) {
    if (key == name) return value;
  }
  return {};
}

S3Result<S3Request> parse_s3_request(const SigV4Request& request, std::string_view raw_path) {
  S3Request parsed;
  // An encoded slash or dot says that somebody wants a key to be taken for another one.
  for (const std::string_view escape : {"%2f", "%2F", "%2e", "%2E", "%5c", "%5C"}) {
    if (raw_path.find(escape) != raw_path.npos) {
      return error(400, "InvalidURI", "the path has an encoded slash, backslash or dot");
    }
  }
  const std::string_view path = std::string_view(request.path).substr(1);
  const std::size_t slash = std::min(path.find('/'), path.size());
  parsed.owner = path.substr(0, slash);
  const std::string_view rest = path.substr(std::min(slash + 1, path.size()));
  if (!rest.empty()) parsed.key = path;
  if (const Status valid = check_key(parsed.key.empty() ? parsed.owner : parsed.key); !path.empty() && !valid.ok()) {
    return error(400, "InvalidURI", valid.message());
  }

  // Each parameter is taken by what knows it; one that is left is refused.
  std::set<std::string> seen;
  std::set<std::string> left;
  for (const auto& [name, value] : request.query) {
    if (!seen.insert(name).second) return error(400, "InvalidArgument", fmt::format("'{}' occurs twice", name));
    const bool ignored = std::ranges::find(kIgnoredParameters, name) != std::end(kIgnoredParameters);
    if (!ignored && !name.starts_with("X-Amz-")) left.insert(name);
  }
  const auto value_of = [&](std::string_view name) -> std::optional<std::string> {
    left.erase(std::string(name));
    for (const auto& [key, value] : request.query) {
      if (key == name) return value;
    }
    return std::nullopt;
  };

  const std::string& method = request.method;
  const bool get = method == "GET", put = method == "PUT", post = method == "POST";
  std::optional<S3Operation> operation;
  if (path.empty()) {
    if (get) operation = S3Operation::kListBuckets;
  } else if (parsed.key.empty()) {
    if (method == "HEAD") operation = S3Operation::kHeadBucket;
    if (put) operation = S3Operation::kCreateBucket;
    if (post && value_of("delete")) operation = S3Operation::kDeleteObjects;
    if (get) {
      operation = value_of("location")  ? S3Operation::kBucketLocation
                  : value_of("uploads") ? S3Operation::kListUploads
                                        : S3Operation::kList;
    }
  } else if (const auto id = value_of("uploadId")) {
    parsed.upload_id = *id;
    if (put) operation = S3Operation::kUploadPart;
    if (get) operation = S3Operation::kListParts;
    if (post) operation = S3Operation::kCompleteUpload;
    if (method == "DELETE") operation = S3Operation::kAbortUpload;
  } else {
    if (get) operation = S3Operation::kGet;
    const bool copy = !header_of(request, "x-amz-copy-source").empty();
    if (put) operation = copy ? S3Operation::kCopy : S3Operation::kPut;
    if (method == "HEAD") operation = S3Operation::kHead;
    if (method == "DELETE") operation = S3Operation::kDelete;
    if (post && value_of("uploads")) operation = S3Operation::kStartUpload;
  }
  if (!operation) return error(405, "MethodNotAllowed", fmt::format("{} is not allowed on this", method));
  parsed.operation = *operation;

  if (*operation == S3Operation::kUploadPart) {
    const auto part = number(value_of("partNumber").value_or(""));
    if (!part || *part < 1 || *part > kPartNumberMax) {
      return error(400, "InvalidArgument", fmt::format("partNumber: expected 1 to {}", kPartNumberMax));
    }
    parsed.part_number = static_cast<int>(*part);
  }
  if (*operation == S3Operation::kList) {
    S3Listing& listing = parsed.listing;
    if (const auto form = value_of("list-type")) {
      if (*form != "2") return error(400, "InvalidArgument", "list-type: expected 2");
      listing.start_after = value_of("start-after").value_or("");
      listing.continuation = value_of("continuation-token").value_or("");
      listing.after = listing.continuation.empty() ? listing.start_after : listing.continuation;
    } else {
      listing.form = 1;
      listing.start_after = listing.after = value_of("marker").value_or("");
    }
    listing.prefix = value_of("prefix").value_or("");
    const std::string delimiter = value_of("delimiter").value_or("");
    if (!delimiter.empty() && delimiter != "/") return not_implemented("a delimiter other than '/'");
    listing.one_level = !delimiter.empty();
    if (const auto encoding = value_of("encoding-type"); encoding && !encoding->empty()) {
      if (*encoding != "url") return error(400, "InvalidArgument", "encoding-type: expected url");
      listing.url_encoded = true;
    }
    if (const auto limit = value_of("max-keys"); limit && !limit->empty()) {
      const auto keys = number(*limit);
      if (!keys) return error(400, "InvalidArgument", "max-keys is no number");
      listing.limit = std::min<std::uint64_t>(*keys, 1000);
    }
  }
  if (*operation == S3Operation::kListUploads) {
    parsed.listing.prefix = value_of("prefix").value_or("");
    value_of("max-uploads");    // a token has few: all are listed
    value_of("encoding-type");  // nothing in a key would be encoded
    for (const char* name : {"key-marker", "upload-id-marker", "delimiter"}) {
      if (const auto value = value_of(name); value && !value->empty()) return not_implemented(name);
    }
  }
  if (*operation == S3Operation::kCopy) {
    auto source = read_copy_source(header_of(request, "x-amz-copy-source"));
    if (auto* refused = std::get_if<S3Error>(&source)) return *refused;
    parsed.copy_source = std::get<std::string>(std::move(source));
  } else if (!header_of(request, "x-amz-copy-source").empty()) {
    return not_implemented("a part that is copied");
  }
  if (*operation == S3Operation::kListParts) {
    value_of("max-parts");  // all are listed
    if (const auto marker = value_of("part-number-marker"); marker && *marker != "0") {
      return not_implemented("part-number-marker");
    }
  }
  if (!left.empty()) return not_implemented(fmt::format("the parameter '{}'", *left.begin()));

  for (const std::string_view name : kRefusedHeaders) {
    if (!header_of(request, name).empty()) return not_implemented(name);
  }
  if (const auto given = header_of(request, "x-amz-acl"); !given.empty() && given != "private") {
    return not_implemented("x-amz-acl other than private");
  }
  const auto optional_header = [&](std::string_view name) -> std::optional<std::string> {
    const std::string_view value = header_of(request, name);
    return value.empty() ? std::nullopt : std::optional<std::string>(value);
  };
  parsed.if_match = optional_header("if-match");
  parsed.if_none_match = optional_header("if-none-match");
  parsed.range = read_range(header_of(request, "range"));
  parsed.wait = read_wait(header_of(request, "prefer"));
  const bool has_body = *operation == S3Operation::kPut || *operation == S3Operation::kUploadPart ||
                        *operation == S3Operation::kDeleteObjects || *operation == S3Operation::kCompleteUpload;
  const bool may_have_body = has_body || *operation == S3Operation::kCreateBucket || *operation == S3Operation::kCopy;
  const bool bodiless = may_have_body && !has_body && header_of(request, "content-length").empty();
  if (!bodiless) {
    if (auto refused = read_body(request, may_have_body, parsed.body)) return *refused;
  }
  const bool conditional_write =
      *operation == S3Operation::kPut || *operation == S3Operation::kCopy || *operation == S3Operation::kCompleteUpload;
  if (conditional_write && parsed.if_none_match && *parsed.if_none_match != "*") {
    return not_implemented("a write with If-None-Match other than *");
  }
  if (conditional_write && parsed.if_match && parsed.if_none_match) {
    return error(400, "InvalidArgument", "If-Match and If-None-Match exclude each other");
  }
  const bool removal = *operation == S3Operation::kDelete || *operation == S3Operation::kDeleteObjects;
  if (removal && (parsed.if_match || parsed.if_none_match)) return not_implemented("a conditional removal");
  return parsed;
}

bool names_tag(std::string_view list, std::string_view tag) {
  if (tag.empty()) return false;
  while (!list.empty()) {
    const std::size_t comma = std::min(list.find(','), list.size());
    std::string_view one = trimmed(list.substr(0, comma));
    if (one == "*") return true;
    if (one.size() >= 2 && one.front() == '"' && one.back() == '"') one = one.substr(1, one.size() - 2);
    if (one == tag) return true;
    list.remove_prefix(std::min(comma + 1, list.size()));
  }
  return false;
}

std::optional<ByteSection> section_of(const ByteRange& range, std::uint64_t size) {
  if (!range.first) {
    const std::uint64_t count = std::min(*range.last, size);
    if (count == 0) return std::nullopt;
    return ByteSection{size - count, count};
  }
  if (*range.first >= size) return std::nullopt;
  const std::uint64_t last = std::min(range.last.value_or(size - 1), size - 1);
  return ByteSection{*range.first, last - *range.first + 1};
}

}  // namespace flotilla
