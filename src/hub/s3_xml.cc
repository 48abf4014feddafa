#include "hub/s3_xml.h"

#include <charconv>

#include <fmt/format.h>

#include "store/s3_xml.h"

namespace flotilla {
namespace {

constexpr std::size_t kKeysMax = 1000;
constexpr int kPartsMax = 10000;

Result<XmlNode> read_body(std::string_view text, std::string_view root) {
  auto node = parse_xml(text);
  if (!node.ok()) return invalid_argument(node.status().message());
  if (node->name != root) return invalid_argument(fmt::format("XML: expected a {}", root));
  return node;
}

std::string_view without_quotes(std::string_view text) {
  if (text.size() >= 2 && text.front() == '"' && text.back() == '"') return text.substr(1, text.size() - 2);
  return text;
}

}  // namespace

std::string xml_escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '"': out += "&quot;"; break;
      default: out += static_cast<unsigned char>(c) < 0x20 ? '?' : c;
    }
  }
  return out;
}

Result<DeleteBody> read_delete_body(std::string_view text) {
  FLOTILLA_ASSIGN_OR_RETURN(const XmlNode root, read_body(text, "Delete"));
  DeleteBody body;
  body.quiet = root.child_text("Quiet") == "true";
  for (const XmlNode& object : root.children) {
    if (object.name != "Object") continue;
    if (object.child("VersionId") != nullptr) return invalid_argument("there are no versions of objects here");
    body.keys.emplace_back(object.child_text("Key"));
  }
  if (body.keys.empty() || body.keys.size() > kKeysMax) {
    return invalid_argument(fmt::format("{} keys; expected 1 to {}", body.keys.size(), kKeysMax));
  }
  return body;
}

Result<std::vector<CompletedPart>> read_complete_body(std::string_view text) {
  FLOTILLA_ASSIGN_OR_RETURN(const XmlNode root, read_body(text, "CompleteMultipartUpload"));
  std::vector<CompletedPart> parts;
  for (const XmlNode& node : root.children) {
    if (node.name != "Part") continue;
    CompletedPart part{.etag = std::string(without_quotes(node.child_text("ETag")))};
    const std::string_view number = node.child_text("PartNumber");
    const auto [stop, failed] = std::from_chars(number.data(), number.data() + number.size(), part.number);
    const bool whole = failed == std::errc{} && stop == number.data() + number.size();
    if (!whole || part.number < 1 || part.number > kPartsMax || part.etag.empty()) {
      return invalid_argument(fmt::format("a part needs its tag and a number from 1 to {}", kPartsMax));
    }
    if (!parts.empty() && parts.back().number >= part.number) {
      return invalid_argument(fmt::format("part {} comes after part {}", part.number, parts.back().number));
    }
    parts.push_back(std::move(part));
  }
  if (parts.empty()) return invalid_argument("no parts");
  return parts;
}

}  // namespace flotilla
