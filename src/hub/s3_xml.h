#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace flotilla {

// The XML of S3's requests and answers. Readers: invalid_argument for what is not well formed (store/s3_xml.h) or not
// as S3 has it.

std::string xml_escaped(std::string_view text);

struct DeleteBody {
  std::vector<std::string> keys;  // below the bucket
  bool quiet = false;
};
// 1 to 1000 keys.
Result<DeleteBody> read_delete_body(std::string_view text);

struct CompletedPart {
  int number = 0;
  std::string etag;
};
// Numbers rise.
Result<std::vector<CompletedPart>> read_complete_body(std::string_view text);

}  // namespace flotilla
