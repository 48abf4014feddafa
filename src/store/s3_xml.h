#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

// What S3 answers in XML. Strict readers: data_loss for anything that is not whole; elements that are not known are
// passed over, as AWS asks of clients.
namespace flotilla {

struct XmlNode {
  std::string name;
  std::string text;  // of an element without children
  std::vector<XmlNode> children;

  const XmlNode* child(std::string_view wanted) const;
  std::string_view child_text(std::string_view wanted) const;  // empty when there is none
};

// The root element. As much of XML as S3 servers send: elements, text, the five entities and character numbers;
// attributes are passed over. Comments, CDATA, document types and processing instructions are refused, as is a depth
// above 16.
Result<XmlNode> parse_xml(std::string_view text);

struct BucketListing {
  struct Entry {
    std::string key;
    std::uint64_t size = 0;
    std::chrono::seconds modified{0};  // since 1970; 0 when the server does not say
  };
  std::vector<Entry> entries;
  bool truncated = false;
};
Result<BucketListing> parse_s3_listing(std::string_view text);

// An Error document; both fields are empty for any other text, for servers and proxies say all kinds of things.
struct S3Refusal {
  std::string code;
  std::string message;
  std::string region;  // where the bucket is, when the request went elsewhere
};
S3Refusal parse_s3_error(std::string_view text);

// The answer to the begin of a multipart upload, and to its end, which may be an Error with the status 200.
Result<std::string> parse_upload_id(std::string_view text);
Result<std::string> parse_completed_etag(std::string_view text);
// The request that ends an upload: the tags of its parts, in order.
std::string complete_upload_xml(const std::vector<std::string>& etags);

}  // namespace flotilla
