#include "store/s3_address.h"

#include <fmt/format.h>

#include <algorithm>

#include "store/object_store.h"

namespace flotilla {
namespace {

constexpr std::string_view kScheme = "s3://";
constexpr std::string_view kSingleWriter = "single-writer";
constexpr std::size_t kPrefixLimit = 480;  // with a key of 512 bytes below S3's 1,024

bool is_bucket(std::string_view name) {
  return name.size() >= 3 && name.size() <= 63 && std::all_of(name.begin(), name.end(), [](char c) {
           return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '-' ||
                  c == '_';
         });
}

// A certificate for *.HOST fits one label.
bool is_label(std::string_view bucket) {
  return bucket.front() != '-' && bucket.back() != '-' && std::all_of(bucket.begin(), bucket.end(), [](char c) {
           return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-';
         });
}

// BUCKET[/PREFIX]
Status read_place(std::string_view place, S3Address& address) {
  while (place.ends_with('/')) place.remove_suffix(1);
  const std::size_t slash = std::min(place.find('/'), place.size());
  address.bucket = place.substr(0, slash);
  if (!is_bucket(address.bucket)) {
    return invalid_argument("a bucket's name has 3 to 63 letters, digits, '.', '-' and '_'");
  }
  if (slash == place.size()) return ok_status();
  address.prefix = place.substr(slash + 1);
  if (check_key(address.prefix).ok() && address.prefix.size() <= kPrefixLimit) return ok_status();
  return invalid_argument("the prefix is not made of names of letters, digits, '.', '-' and '_'");
}

bool is_pin(std::string_view pin) {
  if (!pin.starts_with("sha256//")) return false;
  const auto digest = from_base64(pin.substr(8));
  return digest.ok() && digest->size() == 32;
}

std::string amazon_host(std::string_view region) {
  return fmt::format("s3.{}.amazonaws.com{}", region, region.starts_with("cn-") ? ".cn" : "");
}

bool is_region(std::string_view region) {
  return !region.empty() && region.size() <= 64 &&
         region.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789-") == region.npos;
}

}  // namespace

Result<S3Address> parse_s3_address(std::string_view text) {
  const auto wrong = [&](std::string_view what) {
    return invalid_argument(fmt::format(
        "'{}': {}; expected s3://BUCKET[/PREFIX][?endpoint=https://HOST:PORT&region=..."
        "&style=path|virtual&profile=...&pin=...&single-writer=yes] or https://HOST[:PORT][?...]",
        text.find('@') == text.npos && text.find("%40") == text.npos ? text : "an address with keys", what));
  };
  S3Address address;
  const std::size_t mark = std::min(text.find('?'), text.size());
  if (!text.starts_with(kScheme)) {
    address.endpoint = text.substr(0, mark);
    const auto url = parse_url(address.endpoint);
    if (!url.ok()) return wrong(url.status().message());
  } else if (const Status read = read_place(text.substr(kScheme.size(), mark - kScheme.size()), address); !read.ok()) {
    return wrong(read.message());
  }
  const std::string query(mark == text.size() ? "" : text.substr(mark + 1));
  for (std::size_t begin = 0; begin < query.size();) {
    const std::size_t end = std::min(query.find('&', begin), query.size());
    const std::string part = query.substr(begin, end - begin);
    begin = end + 1;
    const std::size_t equals = part.find('=');
    if (equals == part.npos || equals + 1 == part.size()) return wrong("a setting is NAME=VALUE");
    auto value = uri_decode(std::string_view(part).substr(equals + 1));
    if (!value.ok()) return wrong(value.status().message());
    const std::string name = part.substr(0, equals);
    std::string* field = name == "endpoint"      ? &address.endpoint
                         : name == "region"      ? &address.region
                         : name == "style"       ? &address.style
                         : name == "profile"     ? &address.profile
                         : name == "pin"         ? &address.pin
                         : name == kSingleWriter ? &address.single_writer
                                                 : nullptr;
    if (field == nullptr) return wrong(fmt::format("unknown setting '{}'", name));
    if (!field->empty()) return wrong(fmt::format("'{}' occurs twice", name));
    *field = *std::move(value);
  }
  if (!address.style.empty() && address.style != "path" && address.style != "virtual") {
    return wrong("style is path or virtual");
  }
  if (!address.region.empty() && !is_region(address.region)) return wrong("a region has letters, digits and '-'");
  if (!address.pin.empty() && !is_pin(address.pin)) return wrong("a pin is sha256// and the base64 of a SHA-256");
  if (!address.single_writer.empty() && address.single_writer != "yes") return wrong("single-writer is yes");
  if (address.bucket.empty() && !address.style.empty()) return wrong("a server has no style");
  if (address.bucket.empty() && !address.single_writer.empty()) return wrong("a server writes conditionally");
  if (!address.endpoint.empty()) {
    const auto url = parse_url(address.endpoint);
    if (!url.ok()) return wrong(url.status().message());
    if (!url->user.empty()) return wrong("keys do not belong into an address");
  }
  return address;
}

std::string S3Target::path(std::string_view key) const {
  if (bucket.empty()) return fmt::format("{}/{}", endpoint.path, key);
  return fmt::format("{}{}{}{}", endpoint.path, path_style ? "/" + bucket : "", key.empty() && path_style ? "" : "/",
                     key);
}

std::string S3Target::where(std::string_view object) const {
  return bucket.empty() ? fmt::format("{}/{}", endpoint.text(), object) : fmt::format("s3://{}/{}", bucket, object);
}

S3Target S3Target::in_region(std::string_view other) const {
  S3Target result = *this;
  result.region = other;
  if (amazon) result.endpoint.host = path_style ? amazon_host(other) : fmt::format("{}.{}", bucket, amazon_host(other));
  return result;
}

Result<S3Target> s3_target(const S3Address& address, const AwsSettings& settings) {
  S3Target target;
  target.bucket = address.bucket;
  target.prefix = address.prefix;
  target.region = !address.region.empty() ? address.region : settings.region.empty() ? "us-east-1" : settings.region;
  if (!is_region(target.region)) return invalid_argument("a region has letters, digits and '-'");
  const std::string endpoint = address.endpoint.empty() ? settings.endpoint : address.endpoint;
  target.amazon = endpoint.empty();
  FLOTILLA_ASSIGN_OR_RETURN(
      target.endpoint,
      parse_url(target.amazon ? "https://" + amazon_host(target.region) : endpoint).with_context("S3 endpoint"));
  const std::string style = address.style.empty() ? settings.addressing_style : address.style;
  target.path_style =
      target.bucket.empty() || style == "path" || (style != "virtual" && !(target.amazon && is_label(target.bucket)));
  if (!target.path_style) {
    if (target.endpoint.host.find(':') != std::string::npos || !is_label(target.bucket)) {
      return invalid_argument(fmt::format("bucket '{}' at {} needs style=path", target.bucket, target.endpoint.text()));
    }
    target.endpoint.host = fmt::format("{}.{}", target.bucket, target.endpoint.host);
  }
  return target;
}

}  // namespace flotilla
