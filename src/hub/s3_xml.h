#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace flotilla {

// The XML of S3's bodies.

std::string xml_escaped(std::string_view text);

// An element at its end: its path from the root ("Delete/Object/Key") and the text within it, trimmed where it has
// elements of its own. Namespaces and attributes are dropped.
struct XmlElement {
  std::string path;
  std::string text;
};
// Elements in the order of their ends. invalid_argument for what is not well formed, for a document type and other
// declarations, and for more than 8 levels.
Result<std::vector<XmlElement>> read_xml(std::string_view text);

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
