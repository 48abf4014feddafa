#include "store/s3_xml.h"

#include <fmt/format.h>

#include <charconv>
#include <utility>

namespace flotilla {
namespace {

constexpr int kDepthMax = 16;
constexpr std::pair<std::string_view, char> kEntities[] = {
    {"amp", '&'}, {"lt", '<'}, {"gt", '>'}, {"quot", '"'}, {"apos", '\''}};
constexpr std::string_view kBlanks = " \t\r\n";

std::string utf8(std::uint32_t code) {
  std::string text;
  const auto add = [&](std::uint32_t byte) { text += static_cast<char>(byte); };
  if (code < 0x80) {
    add(code);
  } else if (code < 0x800) {
    add(0xc0 | code >> 6), add(0x80 | (code & 63));
  } else if (code < 0x10000) {
    add(0xe0 | code >> 12), add(0x80 | (code >> 6 & 63)), add(0x80 | (code & 63));
  } else {
    add(0xf0 | code >> 18), add(0x80 | (code >> 12 & 63)), add(0x80 | (code >> 6 & 63)), add(0x80 | (code & 63));
  }
  return text;
}

class XmlReader {
 public:
  explicit XmlReader(std::string_view text) : text_(text) {}

  Result<XmlNode> document() {
    if (text_.substr(at_).starts_with("\xef\xbb\xbf")) at_ += 3;
    skip_blanks();  // a server that takes long sends blanks first
    if (text_.substr(at_).starts_with("<?xml ")) {
      const std::size_t end = text_.find("?>", at_);
      if (end == text_.npos) return wrong("the declaration has no end");
      at_ = end + 2;
    }
    skip_blanks();
    FLOTILLA_ASSIGN_OR_RETURN(XmlNode root, element(1));
    skip_blanks();
    if (at_ != text_.size()) return wrong("something follows the root element");
    return root;
  }

 private:
  Status wrong(std::string_view what) const { return data_loss(fmt::format("XML at byte {}: {}", at_, what)); }
  bool next_is(char c) const { return at_ < text_.size() && text_[at_] == c; }
  void skip_blanks() {
    while (at_ < text_.size() && kBlanks.find(text_[at_]) != kBlanks.npos) ++at_;
  }

  Result<std::string> name() {
    const std::size_t begin = at_;
    while (at_ < text_.size()) {
      const char c = text_[at_];
      const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
      const bool other = (c >= '0' && c <= '9') || c == '-' || c == '.' || c == ':';
      if (!letter && !(other && at_ > begin)) break;
      ++at_;
    }
    if (at_ == begin) return wrong("expected a name");
    return std::string(text_.substr(begin, at_ - begin));
  }

  Status attributes() {
    while (true) {
      const std::size_t before = at_;
      skip_blanks();
      if (next_is('>') || next_is('/') || at_ == text_.size()) return ok_status();
      if (at_ == before) return wrong("expected a blank before an attribute");
      FLOTILLA_RETURN_IF_ERROR(name().status());
      if (!next_is('=')) return wrong("an attribute without '='");
      ++at_;
      if (!next_is('"') && !next_is('\'')) return wrong("an attribute without quotes");
      const std::size_t end = text_.find(text_[at_], at_ + 1);
      if (end == text_.npos) return wrong("an attribute without an end");
      if (text_.substr(at_, end - at_).find('<') != text_.npos) return wrong("'<' in an attribute");
      at_ = end + 1;
    }
  }

  Result<std::string> entity() {
    const std::size_t end = text_.find(';', at_);
    if (end == text_.npos || end - at_ > 10) return wrong("'&' that begins no entity");
    const std::string_view what = text_.substr(at_ + 1, end - at_ - 1);
    std::string value;
    for (const auto& [name, character] : kEntities) {
      if (what == name) value.push_back(character);
    }
    if (what.starts_with('#')) {
      const bool sixteen = what.starts_with("#x");
      const std::string_view digits = what.substr(sixteen ? 2 : 1);
      std::uint32_t code = 0;
      const auto [stop, error] = std::from_chars(digits.data(), digits.data() + digits.size(), code, sixteen ? 16 : 10);
      const bool surrogate = code >= 0xd800 && code < 0xe000;
      if (error == std::errc() && stop == digits.data() + digits.size() && code > 0 && code <= 0x10ffff && !surrogate) {
        value = utf8(code);
      }
    }
    if (value.empty()) return wrong("an unknown entity");
    at_ = end + 1;
    return value;
  }

  Result<XmlNode> element(int depth) {
    if (depth > kDepthMax) return wrong("too deep");
    if (!next_is('<')) return wrong("expected '<'");
    ++at_;
    XmlNode result;
    FLOTILLA_ASSIGN_OR_RETURN(result.name, name());
    FLOTILLA_RETURN_IF_ERROR(attributes());
    if (next_is('/')) {
      ++at_;
      if (!next_is('>')) return wrong("expected '>'");
      ++at_;
      return result;
    }
    if (!next_is('>')) return wrong("a tag without an end");
    ++at_;
    while (true) {
      const std::size_t end = std::min(text_.find_first_of("<&", at_), text_.size());
      result.text += text_.substr(at_, end - at_);
      at_ = end;
      if (at_ == text_.size()) return wrong(fmt::format("'{}' has no end", result.name));
      if (next_is('&')) {
        FLOTILLA_ASSIGN_OR_RETURN(const std::string value, entity());
        result.text += value;
      } else if (text_.substr(at_).starts_with("</")) {
        at_ += 2;
        FLOTILLA_ASSIGN_OR_RETURN(const std::string closed, name());
        skip_blanks();
        if (closed != result.name || !next_is('>')) return wrong(fmt::format("'{}' is not closed", result.name));
        ++at_;
        break;
      } else {
        FLOTILLA_ASSIGN_OR_RETURN(XmlNode child, element(depth + 1));
        result.children.push_back(std::move(child));
      }
    }
    if (!result.children.empty()) {
      if (result.text.find_first_not_of(kBlanks) != result.text.npos) return wrong("text between elements");
      result.text.clear();
    }
    return result;
  }

  const std::string_view text_;
  std::size_t at_ = 0;
};

// "2009-10-12T17:50:30.000Z"; 0 for anything else.
std::chrono::seconds iso_time(std::string_view text) {
  bool right = text.size() >= 20 && text.ends_with('Z');
  const auto number = [&](std::size_t at, std::size_t digits, unsigned most) {
    unsigned value = 0;
    if (!right) return value;
    const char* begin = text.data() + at;
    const auto [stop, error] = std::from_chars(begin, begin + digits, value);
    right = error == std::errc() && stop == begin + digits && value <= most;
    return value;
  };
  const unsigned year = number(0, 4, 9999), month = number(5, 2, 12), day = number(8, 2, 31);
  const unsigned hours = number(11, 2, 23), minutes = number(14, 2, 59), seconds = number(17, 2, 60);
  const std::chrono::year_month_day date(std::chrono::year(static_cast<int>(year)), std::chrono::month(month),
                                         std::chrono::day(day));
  if (!right || !date.ok()) return {};
  return std::chrono::sys_days(date).time_since_epoch() + std::chrono::hours(hours) + std::chrono::minutes(minutes) +
         std::chrono::seconds(seconds);
}

Result<XmlNode> document_named(std::string_view text, std::string_view name) {
  FLOTILLA_ASSIGN_OR_RETURN(XmlNode root, parse_xml(text));
  if (root.name != name)
    return data_loss(fmt::format("expected the document {}, got {}", name, root.name.substr(0, 64)));
  return root;
}

}  // namespace

const XmlNode* XmlNode::child(std::string_view wanted) const {
  for (const XmlNode& each : children) {
    if (each.name == wanted) return &each;
  }
  return nullptr;
}

std::string_view XmlNode::child_text(std::string_view wanted) const {
  const XmlNode* found = child(wanted);
  return found == nullptr ? std::string_view() : found->text;
}

Result<XmlNode> parse_xml(std::string_view text) { return XmlReader(text).document(); }

Result<BucketListing> parse_s3_listing(std::string_view text) {
  FLOTILLA_ASSIGN_OR_RETURN(const XmlNode root, document_named(text, "ListBucketResult"));
  BucketListing listing;
  const std::string_view truncated = root.child_text("IsTruncated");
  if (truncated != "true" && truncated != "false") return data_loss("a listing that does not say whether it is whole");
  listing.truncated = truncated == "true";
  for (const XmlNode& each : root.children) {
    if (each.name != "Contents") continue;
    BucketListing::Entry entry;
    entry.key = each.child_text("Key");
    const std::string_view size = each.child_text("Size");
    const auto [stop, error] = std::from_chars(size.data(), size.data() + size.size(), entry.size);
    if (error != std::errc() || stop != size.data() + size.size()) return data_loss("a listed object without a size");
    if (entry.key.empty()) return data_loss("a listed object without a key");
    entry.modified = iso_time(each.child_text("LastModified"));
    if (!listing.entries.empty() && entry.key <= listing.entries.back().key) {
      return data_loss("a listing that is not in order");
    }
    listing.entries.push_back(std::move(entry));
  }
  if (listing.truncated && listing.entries.empty()) return data_loss("a listing that goes on after nothing");
  return listing;
}

S3Refusal parse_s3_error(std::string_view text) {
  const auto root = document_named(text, "Error");
  if (!root.ok()) return {};
  return {std::string(root->child_text("Code")), std::string(root->child_text("Message")),
          std::string(root->child_text("Region"))};
}

Result<std::string> parse_upload_id(std::string_view text) {
  FLOTILLA_ASSIGN_OR_RETURN(const XmlNode root, document_named(text, "InitiateMultipartUploadResult"));
  if (root.child_text("UploadId").empty()) return data_loss("a multipart upload without an id");
  return std::string(root.child_text("UploadId"));
}

Result<std::string> parse_completed_etag(std::string_view text) {
  FLOTILLA_ASSIGN_OR_RETURN(const XmlNode root, document_named(text, "CompleteMultipartUploadResult"));
  if (root.child_text("ETag").empty()) return data_loss("a multipart upload that ended without a tag");
  return std::string(root.child_text("ETag"));
}

std::string complete_upload_xml(const std::vector<std::string>& etags) {
  std::string text = "<CompleteMultipartUpload xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">";
  for (std::size_t i = 0; i < etags.size(); ++i) {
    std::string etag;
    for (const char c : etags[i])
      etag += c == '"' ? "&quot;" : c == '&' ? "&amp;" : c == '<' ? "&lt;" : std::string(1, c);
    text += fmt::format("<Part><PartNumber>{}</PartNumber><ETag>{}</ETag></Part>", i + 1, etag);
  }
  return text + "</CompleteMultipartUpload>";
}

}  // namespace flotilla
