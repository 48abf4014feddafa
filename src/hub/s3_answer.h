#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "hub/multipart.h"
#include "hub/s3_request.h"
#include "store/directory_tree.h"

namespace flotilla {

// An answer before it is sent: a body, or a section of a file.
struct HubAnswer {
  int status = 200;
  NamedValues headers;
  std::string body;
  std::optional<OpenFile> file;
  ByteSection section;                  // of the file
  std::optional<S3Error> refused = {};  // what of the request was refused; its answer says so among other things
};

HubAnswer xml_answer(int status, std::string xml);
// `resource` is what was asked for; `request_id` names the request in the hub's log.
HubAnswer error_answer(const S3Error& error, std::string_view resource, std::string_view request_id);

// "Sun, 06 Nov 1994 08:49:37 GMT"
std::string http_time(std::time_t time);

std::string buckets_xml(std::string_view owner);
std::string location_xml();
// Keys of the page begin with "<owner>/".
std::string listing_xml(std::string_view owner, const S3Listing& listing, const DirectoryTree::Page& page);
std::string started_xml(std::string_view owner, std::string_view key, std::string_view upload_id);
std::string parts_xml(std::string_view owner, std::string_view key, std::string_view upload_id,
                      const std::vector<MultipartUploads::Known>& parts);
std::string uploads_xml(std::string_view owner, std::string_view prefix,
                        const std::vector<MultipartUploads::Open>& uploads);
std::string copied_xml(std::string_view etag, std::time_t modified);
std::string completed_xml(std::string_view owner, std::string_view key, std::string_view etag);

struct Deletion {
  std::string key;
  std::optional<S3Error> error;
};
std::string deletions_xml(const std::vector<Deletion>& deletions, bool quiet);

}  // namespace flotilla
