#include "hub/s3_xml.h"

#include <algorithm>
#include <charconv>
#include <cstdint>

#include <fmt/format.h>

namespace flotilla {
namespace {

constexpr std::size_t kLevelsMax = 8;
constexpr std::size_t kKeysMax = 1000;
constexpr int kPartsMax = 10000;

bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; }
bool is_name(char c) {
  return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == ':' || c == '_' ||
         c == '-' || c == '.';
}

void append_utf8(std::string& out, std::uint32_t point) {
  if (point < 0x80) {
    out += static_cast<char>(point);
    return;
  }
  const int more = point < 0x800 ? 1 : point < 0x10000 ? 2 : 3;
  constexpr std::uint8_t kLead[] = {0, 0xC0, 0xE0, 0xF0};
  out += static_cast<char>(kLead[more] | point >> (6 * more));
  for (int i = more; i-- > 0;) out += static_cast<char>(0x80 | (point >> (6 * i) & 0x3F));
}

class Reader {
 public:
  explicit Reader(std::string_view text) : rest_(text) {}

  Result<std::vector<XmlElement>> read() {
    if (rest_.starts_with("\xEF\xBB\xBF")) rest_.remove_prefix(3);
    if (rest_.starts_with("<?xml")) {
      const std::size_t end = rest_.find("?>");
      if (end == rest_.npos) return wrong("a declaration without an end");
      rest_.remove_prefix(end + 2);
    }
    while (true) {
      const std::size_t mark = std::min(rest_.find('<'), rest_.size());
      FLOTILLA_RETURN_IF_ERROR(take_text(rest_.substr(0, mark)));
      rest_.remove_prefix(mark);
      if (rest_.empty()) break;
      if (rest_.starts_with("<!--")) {
        const std::size_t end = rest_.find("-->", 4);
        if (end == rest_.npos) return wrong("a comment without an end");
        rest_.remove_prefix(end + 3);
      } else if (rest_.starts_with("</")) {
        FLOTILLA_RETURN_IF_ERROR(close());
      } else {
        FLOTILLA_RETURN_IF_ERROR(open());
      }
    }
    if (!open_.empty() || done_.empty()) return wrong("an element without an end, or none");
    return std::move(done_);
  }

 private:
  struct Open {
    std::string name;
    std::string text;
    bool has_elements = false;
  };

  static Status wrong(std::string_view what) { return invalid_argument(fmt::format("XML: {}", what)); }

  std::string_view name() {
    const auto end = std::find_if_not(rest_.begin(), rest_.end(), is_name);
    const std::string_view found = rest_.substr(0, static_cast<std::size_t>(end - rest_.begin()));
    rest_.remove_prefix(found.size());
    return found.substr(found.find(':') == found.npos ? 0 : found.find(':') + 1);
  }
  void skip_blanks() {
    while (!rest_.empty() && is_blank(rest_.front())) rest_.remove_prefix(1);
  }

  Status open() {
    rest_.remove_prefix(1);
    const std::string_view element = name();
    if (element.empty()) return wrong("expected an element's name");
    if (open_.empty() && !done_.empty()) return wrong("a second root");
    if (open_.size() == kLevelsMax) return wrong("too many levels");
    if (!open_.empty()) open_.back().has_elements = true;
    open_.push_back({std::string(element), {}});
    while (true) {
      const bool gap = !rest_.empty() && is_blank(rest_.front());
      skip_blanks();
      if (rest_.starts_with("/>")) {
        rest_.remove_prefix(2);
        end_element();
        return ok_status();
      }
      if (rest_.starts_with(">")) {
        rest_.remove_prefix(1);
        return ok_status();
      }
      if (!gap || name().empty()) return wrong("expected an attribute or the end of a tag");
      skip_blanks();
      if (!rest_.starts_with("=")) return wrong("an attribute without a value");
      rest_.remove_prefix(1);
      skip_blanks();
      if (rest_.empty() || (rest_.front() != '"' && rest_.front() != '\'')) return wrong("a value without quotes");
      const std::size_t end = rest_.find(rest_.front(), 1);
      if (end == rest_.npos || rest_.substr(0, end).find('<') != rest_.npos) return wrong("a value without an end");
      rest_.remove_prefix(end + 1);
    }
  }

  Status close() {
    rest_.remove_prefix(2);
    const std::string_view element = name();
    skip_blanks();
    if (open_.empty() || element != open_.back().name || !rest_.starts_with(">")) return wrong("a wrong end");
    rest_.remove_prefix(1);
    end_element();
    return ok_status();
  }

  void end_element() {
    XmlElement element;
    for (const Open& one : open_) element.path += (element.path.empty() ? "" : "/") + one.name;
    if (!open_.back().has_elements) element.text = std::move(open_.back().text);
    open_.pop_back();
    done_.push_back(std::move(element));
  }

  Status take_text(std::string_view text) {
    if (open_.empty()) {
      return std::all_of(text.begin(), text.end(), is_blank) ? ok_status() : wrong("text outside the root");
    }
    std::string& out = open_.back().text;
    while (!text.empty()) {
      const std::size_t mark = std::min(text.find('&'), text.size());
      out += text.substr(0, mark);
      text.remove_prefix(mark);
      if (text.empty()) break;
      const std::size_t end = text.find(';');
      if (end == text.npos) return wrong("an entity without an end");
      FLOTILLA_RETURN_IF_ERROR(take_entity(text.substr(1, end - 1), out));
      text.remove_prefix(end + 1);
    }
    return ok_status();
  }

  static Status take_entity(std::string_view entity, std::string& out) {
    constexpr std::pair<std::string_view, char> kKnown[] = {
        {"amp", '&'}, {"lt", '<'}, {"gt", '>'}, {"quot", '"'}, {"apos", '\''}};
    for (const auto& [known, c] : kKnown) {
      if (entity == known) {
        out += c;
        return ok_status();
      }
    }
    if (!entity.starts_with('#')) return wrong("an unknown entity");
    entity.remove_prefix(1);
    const bool hexadecimal = entity.starts_with('x');
    if (hexadecimal) entity.remove_prefix(1);
    std::uint32_t point = 0;
    const auto [end, failed] =
        std::from_chars(entity.data(), entity.data() + entity.size(), point, hexadecimal ? 16 : 10);
    const bool whole = !entity.empty() && failed == std::errc{} && end == entity.data() + entity.size();
    if (!whole || point == 0 || point > 0x10FFFF || (point >= 0xD800 && point < 0xE000)) {
      return wrong("a character that is none");
    }
    append_utf8(out, point);
    return ok_status();
  }

  std::string_view rest_;
  std::vector<Open> open_;
  std::vector<XmlElement> done_;
};

std::string without_quotes(std::string text) {
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

Result<std::vector<XmlElement>> read_xml(std::string_view text) { return Reader(text).read(); }

Result<DeleteBody> read_delete_body(std::string_view text) {
  FLOTILLA_ASSIGN_OR_RETURN(const auto elements, read_xml(text));
  DeleteBody body;
  if (elements.back().path != "Delete") return invalid_argument("XML: expected a Delete");
  for (const XmlElement& element : elements) {
    if (element.path == "Delete/Object/VersionId") return invalid_argument("there are no versions of objects here");
    if (element.path == "Delete/Object/Key") body.keys.push_back(element.text);
    if (element.path == "Delete/Quiet") body.quiet = element.text == "true";
  }
  if (body.keys.empty() || body.keys.size() > kKeysMax) {
    return invalid_argument(fmt::format("{} keys; expected 1 to {}", body.keys.size(), kKeysMax));
  }
  return body;
}

Result<std::vector<CompletedPart>> read_complete_body(std::string_view text) {
  FLOTILLA_ASSIGN_OR_RETURN(const auto elements, read_xml(text));
  if (elements.back().path != "CompleteMultipartUpload") {
    return invalid_argument("XML: expected a CompleteMultipartUpload");
  }
  std::vector<CompletedPart> parts;
  CompletedPart part;
  for (const XmlElement& element : elements) {
    if (element.path == "CompleteMultipartUpload/Part/PartNumber") {
      const char* end = element.text.data() + element.text.size();
      const auto [stop, failed] = std::from_chars(element.text.data(), end, part.number);
      if (failed != std::errc{} || stop != end) part.number = 0;
    }
    if (element.path == "CompleteMultipartUpload/Part/ETag") part.etag = without_quotes(element.text);
    if (element.path != "CompleteMultipartUpload/Part") continue;
    if (part.number < 1 || part.number > kPartsMax || part.etag.empty()) {
      return invalid_argument(fmt::format("a part needs its tag and a number from 1 to {}", kPartsMax));
    }
    if (!parts.empty() && parts.back().number >= part.number) {
      return invalid_argument(fmt::format("part {} comes after part {}", part.number, parts.back().number));
    }
    parts.push_back(std::exchange(part, {}));
  }
  if (parts.empty()) return invalid_argument("no parts");
  return parts;
}

}  // namespace flotilla
