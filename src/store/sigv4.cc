#include "store/sigv4.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <algorithm>
#include <array>
#include <charconv>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/hashing.h"

namespace flotilla {
namespace {

constexpr std::string_view kAlgorithm = "AWS4-HMAC-SHA256";
constexpr std::string_view kChunkAlgorithm = "AWS4-HMAC-SHA256-PAYLOAD";
constexpr std::string_view kTrailerAlgorithm = "AWS4-HMAC-SHA256-TRAILER";
constexpr std::string_view kScopeEnd = "aws4_request";

std::string hmac(std::string_view key, std::string_view message) {
  std::string digest(32, '\0');
  unsigned int size = 0;
  FLOTILLA_CHECK(HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()), as_bytes(message).data(), message.size(),
                      reinterpret_cast<unsigned char*>(digest.data()), &size) != nullptr &&
                 size == digest.size());
  return digest;
}

std::string lower(std::string_view text) {
  std::string result(text);
  for (char& c : result) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return result;
}

// Trimmed, and each run of blanks one space.
std::string canonical_value(std::string_view value) {
  std::string result;
  bool gap = false;
  for (const char c : value) {
    if (c == ' ' || c == '\t') {
      gap = !result.empty();
      continue;
    }
    if (gap) result += ' ';
    gap = false;
    result += c;
  }
  return result;
}

std::string date_of(const SigV4Scope& scope) { return amz_time(scope.time).substr(0, 8); }

std::string scope_text(const SigV4Scope& scope) {
  return fmt::format("{}/{}/{}/{}", date_of(scope), scope.region, scope.service, kScopeEnd);
}

std::string canonical_query(const NamedValues& query) {
  NamedValues encoded;
  for (const auto& [name, value] : query) encoded.emplace_back(uri_encode(name), uri_encode(value));
  std::sort(encoded.begin(), encoded.end());
  std::string text;
  for (const auto& [name, value] : encoded) text += fmt::format("{}{}={}", text.empty() ? "" : "&", name, value);
  return text;
}

std::vector<std::string> header_names(const SigV4Request& request) {
  std::vector<std::string> names;
  for (const auto& [name, value] : request.headers) names.push_back(lower(name));
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  return names;
}

std::string joined(const std::vector<std::string>& parts, std::string_view separator) {
  return fmt::format("{}", fmt::join(parts, separator));
}

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> parts;
  for (std::size_t begin = 0;;) {
    const std::size_t end = std::min(text.find(separator, begin), text.size());
    parts.emplace_back(text.substr(begin, end - begin));
    if (end == text.size()) return parts;
    begin = end + 1;
  }
}

// The one value of a name; nothing when it is missing.
Result<std::optional<std::string>> only_value(const NamedValues& values, std::string_view name, bool any_case) {
  std::optional<std::string> found;
  for (const auto& [key, value] : values) {
    if ((any_case ? lower(key) : key) != name) continue;
    if (found) return invalid_argument(fmt::format("'{}' occurs twice", name));
    found = value;
  }
  return found;
}

Result<std::string> needed_value(const NamedValues& values, std::string_view name, bool any_case) {
  FLOTILLA_ASSIGN_OR_RETURN(auto value, only_value(values, name, any_case));
  if (!value) return invalid_argument(fmt::format("'{}' is missing", name));
  return *std::move(value);
}

bool is_hex_digest(std::string_view text) {
  return text.size() == 64 &&
         std::all_of(text.begin(), text.end(), [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

// Fills key and scope; `time` is the request's own date.
Status read_credential(std::string_view credential, std::chrono::sys_seconds time, SigV4Claim& claim) {
  const std::vector<std::string> parts = split(credential, '/');
  if (parts.size() != 5 || parts[0].empty() || parts[2].empty()) {
    return invalid_argument(
        fmt::format("credential of {} parts; expected key/date/region/service/aws4_request", parts.size()));
  }
  claim.access_key = parts[0];
  claim.scope = {time, parts[2], parts[3]};
  if (parts[3] != "s3" || parts[4] != kScopeEnd)
    return invalid_argument("the credential's scope is not s3/aws4_request");
  if (parts[1] != date_of(claim.scope)) {
    return invalid_argument(
        fmt::format("the credential is of another day, {}, than the request, {}", parts[1], date_of(claim.scope)));
  }
  return ok_status();
}

Status check_signed_headers(const SigV4Request& request, const SigV4Claim& claim) {
  const auto& names = claim.signed_headers;
  if (!std::is_sorted(names.begin(), names.end()) || std::adjacent_find(names.begin(), names.end()) != names.end()) {
    return invalid_argument("the signed headers are not in order");
  }
  const auto is_signed = [&](const std::string& name) { return std::binary_search(names.begin(), names.end(), name); };
  if (!is_signed("host")) return invalid_argument("'host' is not signed");
  const std::vector<std::string> present = header_names(request);
  for (const std::string& name : present) {
    if (name.starts_with("x-amz-") && !is_signed(name))
      return invalid_argument(fmt::format("'{}' is not signed", name));
  }
  for (const std::string& name : names) {
    if (!std::binary_search(present.begin(), present.end(), name)) {
      return invalid_argument(fmt::format("the signed header '{}' is missing", name));
    }
  }
  return ok_status();
}

Status check_payload_hash(std::string_view hash) {
  if (is_hex_digest(hash) || hash == kUnsignedPayload || hash == kSignedChunks || hash == kSignedChunksWithTrailer ||
      hash == kUnsignedChunksWithTrailer) {
    return ok_status();
  }
  return invalid_argument("x-amz-content-sha256 is neither a SHA-256 in hex nor a known word");
}

Result<SigV4Claim> read_header_claim(const SigV4Request& request, std::string_view authorization) {
  SigV4Claim claim;
  FLOTILLA_ASSIGN_OR_RETURN(const std::string date, needed_value(request.headers, "x-amz-date", true));
  FLOTILLA_ASSIGN_OR_RETURN(const auto time, parse_amz_time(date));
  FLOTILLA_ASSIGN_OR_RETURN(claim.payload_hash, needed_value(request.headers, "x-amz-content-sha256", true));
  FLOTILLA_ASSIGN_OR_RETURN(const auto token, only_value(request.headers, "x-amz-security-token", true));
  claim.session_token = token.value_or("");

  NamedValues fields;
  for (const std::string& part : split(authorization.substr(kAlgorithm.size()), ',')) {
    const std::string text = canonical_value(part);
    const std::size_t equals = text.find('=');
    if (equals == text.npos) return invalid_argument("a field of authorization has no '='");
    fields.emplace_back(text.substr(0, equals), text.substr(equals + 1));
  }
  FLOTILLA_ASSIGN_OR_RETURN(const std::string credential, needed_value(fields, "Credential", false));
  FLOTILLA_ASSIGN_OR_RETURN(const std::string names, needed_value(fields, "SignedHeaders", false));
  FLOTILLA_ASSIGN_OR_RETURN(claim.signature, needed_value(fields, "Signature", false));
  claim.signed_headers = split(names, ';');
  FLOTILLA_RETURN_IF_ERROR(read_credential(credential, time, claim));
  return claim;
}

Result<SigV4Claim> read_query_claim(const SigV4Request& request, std::string_view algorithm) {
  if (algorithm != kAlgorithm) return invalid_argument("X-Amz-Algorithm is not AWS4-HMAC-SHA256");
  SigV4Claim claim;
  const auto needed = [&](std::string_view name) { return needed_value(request.query, name, false); };
  FLOTILLA_ASSIGN_OR_RETURN(const std::string date, needed("X-Amz-Date"));
  FLOTILLA_ASSIGN_OR_RETURN(const auto time, parse_amz_time(date));
  FLOTILLA_ASSIGN_OR_RETURN(const std::string expires, needed("X-Amz-Expires"));
  std::int64_t seconds = 0;
  const auto [end, error] = std::from_chars(expires.data(), expires.data() + expires.size(), seconds);
  if (error != std::errc{} || end != expires.data() + expires.size() || seconds < 1 ||
      seconds > kPresignedLimit.count()) {
    return invalid_argument(fmt::format("X-Amz-Expires is not a number from 1 to {}", kPresignedLimit.count()));
  }
  claim.expires = std::chrono::seconds(seconds);
  FLOTILLA_ASSIGN_OR_RETURN(const std::string credential, needed("X-Amz-Credential"));
  FLOTILLA_ASSIGN_OR_RETURN(const std::string names, needed("X-Amz-SignedHeaders"));
  FLOTILLA_ASSIGN_OR_RETURN(claim.signature, needed("X-Amz-Signature"));
  FLOTILLA_ASSIGN_OR_RETURN(const auto token, only_value(request.query, "X-Amz-Security-Token", false));
  claim.session_token = token.value_or("");
  FLOTILLA_ASSIGN_OR_RETURN(const auto hash, only_value(request.headers, "x-amz-content-sha256", true));
  claim.payload_hash = hash.value_or(std::string(kUnsignedPayload));
  claim.signed_headers = split(names, ';');
  FLOTILLA_RETURN_IF_ERROR(read_credential(credential, time, claim));
  return claim;
}

}  // namespace

std::string uri_encode(std::string_view text, bool keep_slash) {
  constexpr char kDigits[] = "0123456789ABCDEF";
  std::string result;
  result.reserve(text.size());
  for (const char c : text) {
    const bool plain = (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' ||
                       c == '.' || c == '_' || c == '~' || (keep_slash && c == '/');
    if (plain) {
      result += c;
    } else {
      const auto byte = static_cast<unsigned char>(c);
      result += {'%', kDigits[byte >> 4], kDigits[byte & 15]};
    }
  }
  return result;
}

Result<std::string> uri_decode(std::string_view text) {
  std::string result;
  result.reserve(text.size());
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      result += text[i];
      continue;
    }
    const auto byte = from_hex(lower(text.substr(i + 1, 2)));
    if (!byte.ok() || byte->size() != 1) return invalid_argument(fmt::format("'%' without two hex digits at {}", i));
    result += static_cast<char>(byte->front());
    i += 2;
  }
  if (result.find('\0') != result.npos) return invalid_argument("a zero byte in a URL");
  return result;
}

std::string request_target(const SigV4Request& request) {
  const std::string query = canonical_query(request.query);
  return uri_encode(request.path, true) + (query.empty() ? "" : "?") + query;
}

Status read_request_target(std::string_view target, SigV4Request& request) {
  const std::size_t mark = std::min(target.find('?'), target.size());
  FLOTILLA_ASSIGN_OR_RETURN(request.path, uri_decode(target.substr(0, mark)));
  if (!request.path.starts_with('/')) return invalid_argument("the path of a request does not begin with '/'");
  request.query.clear();
  if (mark == target.size()) return ok_status();
  for (const std::string& part : split(target.substr(mark + 1), '&')) {
    if (part.empty()) continue;
    const std::size_t equals = std::min(part.find('='), part.size());
    FLOTILLA_ASSIGN_OR_RETURN(std::string name, uri_decode(std::string_view(part).substr(0, equals)));
    std::string value;
    if (equals < part.size()) {
      FLOTILLA_ASSIGN_OR_RETURN(value, uri_decode(std::string_view(part).substr(equals + 1)));
    }
    request.query.emplace_back(std::move(name), std::move(value));
  }
  return ok_status();
}

std::string amz_time(std::chrono::sys_seconds time) {
  const auto day = std::chrono::floor<std::chrono::days>(time);
  const std::chrono::year_month_day date(day);
  const std::chrono::hh_mm_ss clock(time - day);
  return fmt::format("{:04}{:02}{:02}T{:02}{:02}{:02}Z", static_cast<int>(date.year()),
                     static_cast<unsigned>(date.month()), static_cast<unsigned>(date.day()), clock.hours().count(),
                     clock.minutes().count(), clock.seconds().count());
}

Result<std::chrono::sys_seconds> parse_amz_time(std::string_view text) {
  using namespace std::chrono;
  const auto number = [&](std::size_t begin, std::size_t count) {
    int value = 0;
    for (const char c : text.substr(begin, count)) value = value * 10 + (c - '0');
    return value;
  };
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  bool shaped = text.size() == 16 && text[8] == 'T' && text[15] == 'Z';
  for (std::size_t i = 0; shaped && i < 15; ++i) shaped = i == 8 || is_digit(text[i]);
  if (shaped) {
    const year_month_day date(year(number(0, 4)), month(static_cast<unsigned>(number(4, 2))),
                              day(static_cast<unsigned>(number(6, 2))));
    if (date.ok() && number(9, 2) < 24 && number(11, 2) < 60 && number(13, 2) < 60) {
      return sys_seconds(sys_days(date)) + hours(number(9, 2)) + minutes(number(11, 2)) + seconds(number(13, 2));
    }
  }
  return invalid_argument("not a time like 20130524T000000Z");
}

std::string canonical_request(const SigV4Request& request, const std::vector<std::string>& signed_headers,
                              std::string_view payload_hash) {
  std::string text =
      fmt::format("{}\n{}\n{}\n", request.method, uri_encode(request.path, true), canonical_query(request.query));
  for (const std::string& name : signed_headers) {
    std::vector<std::string> values;
    for (const auto& [key, value] : request.headers) {
      if (lower(key) == name) values.push_back(canonical_value(value));
    }
    text += fmt::format("{}:{}\n", name, joined(values, ","));
  }
  return text + fmt::format("\n{}\n{}", joined(signed_headers, ";"), payload_hash);
}

std::string string_to_sign(const SigV4Scope& scope, std::string_view canonical_request) {
  return fmt::format("{}\n{}\n{}\n{}", kAlgorithm, amz_time(scope.time), scope_text(scope),
                     sha256(canonical_request).to_hex());
}

std::string sigv4_signature(std::string_view secret_key, const SigV4Scope& scope, std::string_view string_to_sign) {
  std::string key = hmac(fmt::format("AWS4{}", secret_key), date_of(scope));
  for (const std::string_view part : {std::string_view(scope.region), std::string_view(scope.service), kScopeEnd}) {
    key = hmac(key, part);
  }
  return hex(as_bytes(hmac(key, string_to_sign)));
}

std::string sign_request(SigV4Request& request, const AwsCredentials& credentials, const SigV4Scope& scope,
                         std::string_view payload_hash) {
  request.headers.emplace_back("x-amz-date", amz_time(scope.time));
  request.headers.emplace_back("x-amz-content-sha256", payload_hash);
  if (!credentials.session_token.empty()) {
    request.headers.emplace_back("x-amz-security-token", credentials.session_token);
  }
  const std::vector<std::string> names = header_names(request);
  std::string signature = sigv4_signature(credentials.secret_key, scope,
                                          string_to_sign(scope, canonical_request(request, names, payload_hash)));
  request.headers.emplace_back("authorization",
                               fmt::format("{} Credential={}/{}, SignedHeaders={}, Signature={}", kAlgorithm,
                                           credentials.access_key, scope_text(scope), joined(names, ";"), signature));
  return signature;
}

void presign_request(SigV4Request& request, const AwsCredentials& credentials, const SigV4Scope& scope,
                     std::chrono::seconds expires) {
  const std::vector<std::string> names = header_names(request);
  request.query.emplace_back("X-Amz-Algorithm", kAlgorithm);
  request.query.emplace_back("X-Amz-Credential", fmt::format("{}/{}", credentials.access_key, scope_text(scope)));
  request.query.emplace_back("X-Amz-Date", amz_time(scope.time));
  request.query.emplace_back("X-Amz-Expires", std::to_string(expires.count()));
  request.query.emplace_back("X-Amz-SignedHeaders", joined(names, ";"));
  if (!credentials.session_token.empty()) {
    request.query.emplace_back("X-Amz-Security-Token", credentials.session_token);
  }
  const std::string canonical = canonical_request(request, names, kUnsignedPayload);
  request.query.emplace_back("X-Amz-Signature",
                             sigv4_signature(credentials.secret_key, scope, string_to_sign(scope, canonical)));
}

Result<SigV4Claim> read_claim(const SigV4Request& request) {
  FLOTILLA_ASSIGN_OR_RETURN(const auto authorization, only_value(request.headers, "authorization", true));
  FLOTILLA_ASSIGN_OR_RETURN(const auto algorithm, only_value(request.query, "X-Amz-Algorithm", false));
  if (authorization && algorithm) return invalid_argument("signed both in a header and in the URL");
  const bool in_header = authorization && authorization->starts_with(fmt::format("{} ", kAlgorithm));
  if (!in_header && !algorithm) return permission_denied("the request has no AWS4-HMAC-SHA256 signature");
  FLOTILLA_ASSIGN_OR_RETURN(
      SigV4Claim claim, in_header ? read_header_claim(request, *authorization) : read_query_claim(request, *algorithm));
  FLOTILLA_RETURN_IF_ERROR(check_payload_hash(claim.payload_hash));
  FLOTILLA_RETURN_IF_ERROR(check_signed_headers(request, claim));
  if (!is_hex_digest(claim.signature)) return invalid_argument("the signature is not 64 hex digits");
  return claim;
}

Status verify_request(const SigV4Request& request, const SigV4Claim& claim, std::string_view secret_key,
                      std::chrono::sys_seconds now) {
  SigV4Request covered = request;
  std::erase_if(covered.query, [](const auto& parameter) { return parameter.first == "X-Amz-Signature"; });
  const std::string canonical = canonical_request(covered, claim.signed_headers, claim.payload_hash);
  const std::string signature = sigv4_signature(secret_key, claim.scope, string_to_sign(claim.scope, canonical));
  if (!equal_in_constant_time(signature, claim.signature)) return permission_denied("the signature does not match");

  const auto age = now - claim.scope.time;
  if (age < -kSkewLimit || (!claim.expires && age > kSkewLimit)) {
    return failed_precondition(fmt::format("the request is of {}, here it is {}; at most {} s may lie between",
                                           amz_time(claim.scope.time), amz_time(now), kSkewLimit.count()));
  }
  if (claim.expires && age > *claim.expires) {
    return permission_denied(fmt::format("the URL expired {} s ago", (age - *claim.expires).count()));
  }
  return ok_status();
}

ChunkSignatures::ChunkSignatures(std::string secret_key, SigV4Scope scope, std::string seed)
    : secret_key_(std::move(secret_key)), scope_(std::move(scope)), previous_(std::move(seed)) {}

std::string ChunkSignatures::next(std::string_view algorithm, std::string_view text) {
  return sigv4_signature(
      secret_key_, scope_,
      fmt::format("{}\n{}\n{}\n{}\n{}", algorithm, amz_time(scope_.time), scope_text(scope_), previous_, text));
}

std::string ChunkSignatures::sign(ByteSpan chunk) {
  return previous_ = next(kChunkAlgorithm, fmt::format("{}\n{}", sha256("").to_hex(), sha256(chunk).to_hex()));
}

std::string ChunkSignatures::sign_trailer(std::string_view trailer) {
  return previous_ = next(kTrailerAlgorithm, sha256(trailer).to_hex());
}

Status ChunkSignatures::verify(ByteSpan chunk, std::string_view signature) {
  if (equal_in_constant_time(sign(chunk), signature)) return ok_status();
  return permission_denied("the signature of a chunk does not match");
}

Status ChunkSignatures::verify_trailer(std::string_view trailer, std::string_view signature) {
  if (equal_in_constant_time(sign_trailer(trailer), signature)) return ok_status();
  return permission_denied("the signature of the trailer does not match");
}

bool equal_in_constant_time(std::string_view a, std::string_view b) {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

}  // namespace flotilla
