#include "hub/s3_answer.h"

#include <array>
#include <ctime>

#include <fmt/format.h>

#include "base/clock.h"
#include "hub/s3_xml.h"

namespace flotilla {
namespace {

constexpr std::string_view kNamespace = "http://s3.amazonaws.com/doc/2006-03-01/";

std::string element(std::string_view name, std::string_view text) {
  return fmt::format("<{0}>{1}</{0}>", name, xml_escaped(text));
}
std::string document(std::string_view root, std::string_view content) {
  return fmt::format("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<{0} xmlns=\"{1}\">{2}</{0}>", root, kNamespace,
                     content);
}
std::string iso_time(std::time_t time) { return utc_text(std::chrono::seconds(time)); }
std::string quoted(std::string_view etag) { return fmt::format("\"{}\"", etag); }
std::string_view below(std::string_view key, std::string_view owner) { return key.substr(owner.size() + 1); }

}  // namespace

HubAnswer xml_answer(int status, std::string xml) {
  HubAnswer answer;
  answer.status = status;
  answer.headers = {{"content-type", "application/xml"}};
  answer.body = std::move(xml);
  return answer;
}

HubAnswer error_answer(const S3Error& error, std::string_view resource, std::string_view request_id) {
  HubAnswer answer =
      xml_answer(error.http_status, fmt::format("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<Error>{}{}{}{}</Error>",
                                                element("Code", error.code), element("Message", error.message),
                                                element("Resource", resource), element("RequestId", request_id)));
  if (error.http_status == 503) answer.headers.emplace_back("retry-after", "1");
  return answer;
}

std::string http_time(std::time_t time) {
  std::tm parts{};
  ::gmtime_r(&time, &parts);
  std::array<char, 64> text{};
  return {text.data(), std::strftime(text.data(), text.size(), "%a, %d %b %Y %H:%M:%S GMT", &parts)};
}

std::string buckets_xml(std::string_view owner) {
  return document("ListAllMyBucketsResult",
                  fmt::format("<Owner>{}</Owner><Buckets><Bucket>{}{}</Bucket></Buckets>", element("ID", owner),
                              element("Name", owner), element("CreationDate", iso_time(0))));
}

std::string location_xml() { return document("LocationConstraint", ""); }

std::string listing_xml(std::string_view owner, const S3Listing& listing, const DirectoryTree::Page& page) {
  const auto text = [&](std::string_view value) {
    return listing.url_encoded ? uri_encode(value, true) : std::string(value);
  };
  std::string content = element("Name", owner) + element("Prefix", text(listing.prefix)) +
                        element("MaxKeys", std::to_string(listing.limit)) +
                        element("IsTruncated", page.next.empty() ? "false" : "true");
  if (listing.one_level) content += element("Delimiter", "/");
  if (listing.url_encoded) content += element("EncodingType", "url");
  const std::string_view next = page.next.empty() ? std::string_view() : below(page.next, owner);
  if (listing.form == 2) {
    content += element("KeyCount", std::to_string(page.entries.size()));
    if (!listing.start_after.empty()) content += element("StartAfter", text(listing.start_after));
    if (!listing.continuation.empty()) content += element("ContinuationToken", listing.continuation);
    if (!next.empty()) content += element("NextContinuationToken", next);
  } else {
    content += element("Marker", text(listing.start_after));
    if (!next.empty()) content += element("NextMarker", text(next));
  }
  for (const DirectoryTree::Entry& entry : page.entries) {
    const std::string key = text(below(entry.key, owner));
    if (entry.key.ends_with('/')) {
      content += fmt::format("<CommonPrefixes>{}</CommonPrefixes>", element("Prefix", key));
    } else {
      content += fmt::format("<Contents>{}{}{}{}</Contents>", element("Key", key),
                             element("LastModified", iso_time(entry.modified)),
                             element("Size", std::to_string(entry.size)), element("StorageClass", "STANDARD"));
    }
  }
  return document("ListBucketResult", content);
}

std::string started_xml(std::string_view owner, std::string_view key, std::string_view upload_id) {
  return document("InitiateMultipartUploadResult",
                  element("Bucket", owner) + element("Key", below(key, owner)) + element("UploadId", upload_id));
}

std::string parts_xml(std::string_view owner, std::string_view key, std::string_view upload_id,
                      const std::vector<MultipartUploads::Known>& parts) {
  std::string content = element("Bucket", owner) + element("Key", below(key, owner)) + element("UploadId", upload_id) +
                        element("IsTruncated", "false");
  for (const auto& part : parts) {
    content += fmt::format("<Part>{}{}{}{}</Part>", element("PartNumber", std::to_string(part.number)),
                           element("ETag", quoted(part.etag)), element("Size", std::to_string(part.size)),
                           element("LastModified", iso_time(part.modified)));
  }
  return document("ListPartsResult", content);
}

std::string uploads_xml(std::string_view owner, std::string_view prefix,
                        const std::vector<MultipartUploads::Open>& uploads) {
  std::string content = element("Bucket", owner) + element("Prefix", prefix) + element("IsTruncated", "false");
  for (const auto& upload : uploads) {
    content += fmt::format("<Upload>{}{}{}{}</Upload>", element("Key", below(upload.key, owner)),
                           element("UploadId", upload.id), element("StorageClass", "STANDARD"),
                           element("Initiated", iso_time(upload.started)));
  }
  return document("ListMultipartUploadsResult", content);
}

std::string copied_xml(std::string_view etag, std::time_t modified) {
  return document("CopyObjectResult", element("LastModified", iso_time(modified)) + element("ETag", quoted(etag)));
}

std::string completed_xml(std::string_view owner, std::string_view key, std::string_view etag) {
  return document("CompleteMultipartUploadResult", element("Location", fmt::format("/{}", key)) +
                                                       element("Bucket", owner) + element("Key", below(key, owner)) +
                                                       element("ETag", quoted(etag)));
}

std::string deletions_xml(const std::vector<Deletion>& deletions, bool quiet) {
  std::string content;
  for (const Deletion& one : deletions) {
    if (one.error) {
      content += fmt::format("<Error>{}{}{}</Error>", element("Key", one.key), element("Code", one.error->code),
                             element("Message", one.error->message));
    } else if (!quiet) {
      content += fmt::format("<Deleted>{}</Deleted>", element("Key", one.key));
    }
  }
  return document("DeleteResult", content);
}

}  // namespace flotilla
