#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/status.h"

// AWS Signature Version 4 as S3 uses it, for both sides of a connection: pure functions, time is an argument.
// "Authenticating Requests (AWS Signature Version 4)", Amazon S3 API reference.
namespace flotilla {

struct AwsCredentials {
  std::string access_key;
  std::string secret_key;
  std::string session_token;  // of temporary credentials; empty otherwise
};

using NamedValues = std::vector<std::pair<std::string, std::string>>;

// An HTTP request as far as a signature covers it. Path and query are decoded: S3 encodes each once, in one way.
struct SigV4Request {
  std::string method;   // "GET"
  std::string path;     // "/bucket/some key"
  NamedValues query;    // in any order
  NamedValues headers;  // names in any case; "host" among them
};

// Values of x-amz-content-sha256 that stand in for the SHA-256 of the body.
inline constexpr std::string_view kUnsignedPayload = "UNSIGNED-PAYLOAD";
inline constexpr std::string_view kSignedChunks = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD";
inline constexpr std::string_view kSignedChunksWithTrailer = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER";
inline constexpr std::string_view kUnsignedChunksWithTrailer = "STREAMING-UNSIGNED-PAYLOAD-TRAILER";

// The limit of AWS in both directions, and of presigned URLs.
inline constexpr std::chrono::seconds kSkewLimit{15 * 60};
inline constexpr std::chrono::seconds kPresignedLimit{7 * 24 * 3600};

// RFC 3986: all but A-Z a-z 0-9 - . _ ~ becomes %XX; '/' stays in a path.
std::string uri_encode(std::string_view text, bool keep_slash = false);
// invalid_argument for a '%' that two hex digits do not follow, and for a zero byte.
Result<std::string> uri_decode(std::string_view text);
// The target of the request line: encoded path and query, with '?' between when there is a query.
std::string request_target(const SigV4Request& request);
// Fills path and query from a request line's target. '+' is itself, as everywhere in S3.
Status read_request_target(std::string_view target, SigV4Request& request);

// "20130524T000000Z", and back: invalid_argument for anything else.
std::string amz_time(std::chrono::sys_seconds time);
Result<std::chrono::sys_seconds> parse_amz_time(std::string_view text);

// What a signature is bound to.
struct SigV4Scope {
  std::chrono::sys_seconds time;
  std::string region;
  std::string service = "s3";
};

// The steps, for tests and messages. `signed_headers` are lower case, in order.
std::string canonical_request(const SigV4Request& request, const std::vector<std::string>& signed_headers,
                              std::string_view payload_hash);
std::string string_to_sign(const SigV4Scope& scope, std::string_view canonical_request);
std::string sigv4_signature(std::string_view secret_key, const SigV4Scope& scope, std::string_view string_to_sign);

// Adds x-amz-date, x-amz-content-sha256, x-amz-security-token (with a session token) and authorization. All headers
// that are there are signed: add later what a proxy may change. Returns the signature, which seeds those of chunks.
std::string sign_request(SigV4Request& request, const AwsCredentials& credentials, const SigV4Scope& scope,
                         std::string_view payload_hash);
// Adds the X-Amz- parameters of a URL that works for `expires` without other credentials. Its payload is unsigned.
void presign_request(SigV4Request& request, const AwsCredentials& credentials, const SigV4Scope& scope,
                     std::chrono::seconds expires);

// What a request says about its own signature. Nothing of it is true yet.
struct SigV4Claim {
  std::string access_key;
  SigV4Scope scope;
  std::vector<std::string> signed_headers;
  std::string signature;
  std::string payload_hash;                     // x-amz-content-sha256, or kUnsignedPayload of a presigned URL
  std::string session_token;                    // may be empty
  std::optional<std::chrono::seconds> expires;  // of a presigned URL
};

// permission_denied when the request is not signed; invalid_argument when it is, but not as SigV4 demands: host and all
// x-amz- headers must be signed, date and scope must agree, and no part may occur twice.
Result<SigV4Claim> read_claim(const SigV4Request& request);
// ok: who holds `secret_key` signed this request, and it is valid at `now`. failed_precondition: the clocks differ by
// more than kSkewLimit, or a presigned URL is not valid yet. permission_denied: another signature, or a URL that has
// expired. Takes the same time for every wrong signature. The body is not looked at: compare it with the payload hash.
Status verify_request(const SigV4Request& request, const SigV4Claim& claim, std::string_view secret_key,
                      std::chrono::sys_seconds now);

// The chain of signatures in a body of signed chunks: each covers the one before it. Not thread safe.
class ChunkSignatures {
 public:
  // `seed` is the signature of the request.
  ChunkSignatures(std::string secret_key, SigV4Scope scope, std::string seed);

  // Signs the next chunk; the last one is empty.
  std::string sign(ByteSpan chunk);
  // Signs the trailing headers, after the last chunk: "name:value\n" each, names in lower case and in order.
  std::string sign_trailer(std::string_view trailer);
  // permission_denied when the signature is not that of the next chunk.
  Status verify(ByteSpan chunk, std::string_view signature);
  Status verify_trailer(std::string_view trailer, std::string_view signature);

 private:
  std::string next(std::string_view algorithm, std::string_view text);

  const std::string secret_key_;
  const SigV4Scope scope_;
  std::string previous_;
};

// Equal, in a time that depends on the lengths only.
bool equal_in_constant_time(std::string_view a, std::string_view b);

}  // namespace flotilla
