#include "sync/signed_json.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "model/strict_json.h"

namespace flotilla {
namespace {

constexpr std::string_view kSignatureStart = ",\"signature\":\"";
constexpr std::string_view kSignatureEnd = "\"}";
constexpr std::size_t kSignatureText = 88;  // base64 of 64 bytes
constexpr std::size_t kTail = kSignatureStart.size() + kSignatureText + kSignatureEnd.size();

std::string message_of(std::string_view kind, std::string_view body) {
  return fmt::format("flotilla {}\n{}", kind, body);
}

// Body and signature; the body not yet parsed.
Result<SignedJson> take_apart(std::string_view text) {
  const std::string_view tail = text.size() < kTail ? std::string_view{} : text.substr(text.size() - kTail);
  if (!tail.starts_with(kSignatureStart) || !tail.ends_with(kSignatureEnd)) {
    return data_loss("does not end with a signature");
  }
  SignedJson document;
  FLOTILLA_ASSIGN_OR_RETURN(const Bytes signature, from_base64(tail.substr(kSignatureStart.size(), kSignatureText)));
  if (signature.size() != document.signature.size()) {
    return data_loss(fmt::format("a signature of {} bytes; expected {}", signature.size(), document.signature.size()));
  }
  std::copy(signature.begin(), signature.end(), document.signature.begin());
  document.text = std::string(text.substr(0, text.size() - kTail)) + '}';
  return document;
}

Status parse_body(SignedJson& document) {
  FLOTILLA_ASSIGN_OR_RETURN(document.body, parse_strict_json(document.text));
  if (!document.body.is_object()) return data_loss("is not a JSON object");
  return document.body.dump() == document.text ? ok_status() : data_loss("is not in canonical form");
}

Status check_signer(std::string_view kind, const SignedJson& document, const PublicKey& key) {
  return verify_signature(key, as_bytes(message_of(kind, document.text)), document.signature);
}

Status check_format(const nlohmann::json& body, const char* field, int format) {
  const auto found = body.find(field);
  const bool newer = found != body.end() && found->is_number_unsigned() && *found > format;
  return newer ? upgrade_needed(field, found->dump(), format) : ok_status();
}

}  // namespace

std::string sign_json(std::string_view kind, const nlohmann::json& body, const SigningKey& key) {
  FLOTILLA_CHECK(body.is_object() && !body.empty());
  std::string text = body.dump();
  const Signature signature = key.sign(as_bytes(message_of(kind, text)));
  text.pop_back();
  text += kSignatureStart;
  text += base64(signature);
  text += kSignatureEnd;
  return text;
}

Result<SignedJson> open_signed_json(std::string_view text) {
  if (text.size() > kUnsignedJsonBytesMax) {
    return data_loss(fmt::format("has {} bytes; at most {}", text.size(), kUnsignedJsonBytesMax));
  }
  FLOTILLA_ASSIGN_OR_RETURN(SignedJson document, take_apart(text));
  FLOTILLA_RETURN_IF_ERROR(parse_body(document));
  return document;
}

Result<SignedJson> open_signed_json(std::string_view kind, std::string_view text, const PublicKey& key,
                                    const char* format_field, int format) {
  FLOTILLA_ASSIGN_OR_RETURN(SignedJson document, take_apart(text));
  FLOTILLA_RETURN_IF_ERROR(check_signer(kind, document, key));
  FLOTILLA_RETURN_IF_ERROR(parse_body(document));
  FLOTILLA_RETURN_IF_ERROR(check_format(document.body, format_field, format));
  return document;
}

Status check_signed_json(std::string_view kind, const SignedJson& document, const PublicKey& key,
                         const char* format_field, int format) {
  FLOTILLA_RETURN_IF_ERROR(check_signer(kind, document, key));
  return check_format(document.body, format_field, format);
}

Status upgrade_needed(std::string_view what, std::string_view found, int known) {
  return failed_precondition(
      fmt::format("{} is {}, this program knows {}: upgrade flotilla", what, found.substr(0, 40), known));
}

Status check_known(const nlohmann::json& body, const char* name, int known) {
  const auto found = body.find(name);
  if (found == body.end() || !found->is_number_unsigned() || *found == known) return ok_status();
  return upgrade_needed(name, found->dump(), known);
}

JsonFields::JsonFields(const nlohmann::json& object, std::string prefix) : object_(object), prefix_(std::move(prefix)) {
  if (!object_.is_object()) status_ = data_loss(prefix_ + "is not an object");
}

const nlohmann::json& JsonFields::member(const char* name) {
  static const nlohmann::json kNull;
  read_.insert(name);
  const auto found = object_.is_object() ? object_.find(name) : object_.end();
  if (found == object_.end()) {
    fail(name, "is missing");
    return kNull;
  }
  return *found;
}

void JsonFields::fail(const char* name, std::string_view why) {
  if (status_.ok()) status_ = data_loss(fmt::format("field {}{} {}", prefix_, name, why));
}

std::string JsonFields::text(const char* name, std::size_t longest) {
  const nlohmann::json& value = member(name);
  if (!value.is_string()) {
    fail(name, "is not a string");
    return {};
  }
  auto text = value.get<std::string>();
  if (text.size() > longest) fail(name, fmt::format("has {} bytes; at most {}", text.size(), longest));
  return text;
}

std::uint64_t JsonFields::number(const char* name, std::uint64_t smallest, std::uint64_t largest) {
  const nlohmann::json& value = member(name);
  if (!value.is_number_unsigned()) {
    fail(name, "is not a whole number");
    return smallest;
  }
  const auto number = value.get<std::uint64_t>();
  if (number < smallest || number > largest) {
    fail(name, fmt::format("is {}; expected {} to {}", number, smallest, largest));
    return smallest;
  }
  return number;
}

double JsonFields::real(const char* name) {
  const nlohmann::json& value = member(name);
  if (!value.is_number()) {
    fail(name, "is not a number");
    return 0;
  }
  return value.get<double>();
}

Sha256Digest JsonFields::digest(const char* name) {
  auto digest = Sha256Digest::from_hex(text(name, 64));
  if (!digest.ok()) {
    fail(name, "is not a SHA-256 in hex");
    return {};
  }
  return *digest;
}

Status JsonFields::finish() const {
  if (!status_.ok()) return status_;
  for (const auto& [name, value] : object_.items()) {
    if (!read_.contains(name)) return data_loss(fmt::format("unknown field {}{}", prefix_, name));
  }
  return ok_status();
}

}  // namespace flotilla
