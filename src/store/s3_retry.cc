#include "store/s3_retry.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>

namespace flotilla {
namespace {

struct Row {
  std::string_view error;
  S3Judgement judgement;
};

// "Error responses" of the S3 API reference; the last ones are MinIO's and Cloudflare R2's.
constexpr std::array kRows = {
    Row{"RequestTimeTooSkewed", {StatusCode::kFailedPrecondition, S3Remedy::kCorrectClock}},
    Row{"ExpiredToken", {StatusCode::kPermissionDenied, S3Remedy::kReadKeysAgain}},
    Row{"TokenRefreshRequired", {StatusCode::kPermissionDenied, S3Remedy::kReadKeysAgain}},
    Row{"InvalidAccessKeyId", {StatusCode::kPermissionDenied, S3Remedy::kReadKeysAgain}},
    Row{"InvalidToken", {StatusCode::kPermissionDenied, S3Remedy::kReadKeysAgain}},
    Row{"PermanentRedirect", {StatusCode::kFailedPrecondition, S3Remedy::kOtherRegion}},
    Row{"TemporaryRedirect", {StatusCode::kFailedPrecondition, S3Remedy::kOtherRegion}},
    Row{"AuthorizationHeaderMalformed", {StatusCode::kFailedPrecondition, S3Remedy::kOtherRegion}},
    Row{"SlowDown", {StatusCode::kUnavailable, S3Remedy::kAgain}},
    Row{"ServiceUnavailable", {StatusCode::kUnavailable, S3Remedy::kAgain}},
    Row{"Throttling", {StatusCode::kUnavailable, S3Remedy::kAgain}},
    Row{"ThrottlingException", {StatusCode::kUnavailable, S3Remedy::kAgain}},
    Row{"RequestLimitExceeded", {StatusCode::kUnavailable, S3Remedy::kAgain}},
    Row{"TooManyRequests", {StatusCode::kUnavailable, S3Remedy::kAgain}},
    Row{"RequestTimeout", {StatusCode::kUnavailable, S3Remedy::kAgain}},
    Row{"ConditionalRequestConflict", {StatusCode::kUnavailable, S3Remedy::kAgain}},
    Row{"OperationAborted", {StatusCode::kUnavailable, S3Remedy::kAgain}},
    Row{"InternalError", {StatusCode::kUnavailable, S3Remedy::kAgainUnsure}},
    Row{"BadDigest", {StatusCode::kDataLoss, S3Remedy::kAgain}},
    Row{"XAmzContentSHA256Mismatch", {StatusCode::kDataLoss, S3Remedy::kAgain}},
    Row{"IncompleteBody", {StatusCode::kDataLoss, S3Remedy::kAgain}},
    Row{"NoSuchKey", {StatusCode::kNotFound, S3Remedy::kNone}},
    Row{"NoSuchBucket", {StatusCode::kUnavailable, S3Remedy::kNone}},
    Row{"EntityTooLarge", {StatusCode::kInvalidArgument, S3Remedy::kNone}},
    Row{"QuotaExceeded", {StatusCode::kResourceExhausted, S3Remedy::kNone}},
    Row{"XMinioStorageFull", {StatusCode::kResourceExhausted, S3Remedy::kNone}},
    Row{"XMinioAdminBucketQuotaExceeded", {StatusCode::kResourceExhausted, S3Remedy::kNone}},
    // Not a condition that failed, although Swift says so of a write with If-Match.
    Row{"NotImplemented", {StatusCode::kInvalidArgument, S3Remedy::kNone}},
};

}  // namespace

S3Judgement judge_s3_answer(int http_status, std::string_view error_code) {
  for (const Row& row : kRows) {
    if (row.error == error_code) return row.judgement;
  }
  switch (http_status) {
    case 301:
    case 307: return {StatusCode::kFailedPrecondition, S3Remedy::kOtherRegion};
    case 401:
    case 403: return {StatusCode::kPermissionDenied, S3Remedy::kNone};
    case 404: return {StatusCode::kNotFound, S3Remedy::kNone};
    case 405:
    case 412: return {StatusCode::kFailedPrecondition, S3Remedy::kNone};
    case 408: return {StatusCode::kUnavailable, S3Remedy::kAgainUnsure};
    case 409:
    case 429:
    case 503: return {StatusCode::kUnavailable, S3Remedy::kAgain};
    case 413:
    case 416:
    case 501: return {StatusCode::kInvalidArgument, S3Remedy::kNone};
    case 504: return {StatusCode::kDeadlineExceeded, S3Remedy::kAgainUnsure};
    case 507: return {StatusCode::kResourceExhausted, S3Remedy::kNone};
    default:
      if (http_status >= 500) return {StatusCode::kUnavailable, S3Remedy::kAgainUnsure};
      return {StatusCode::kInternal, S3Remedy::kNone};
  }
}

std::chrono::milliseconds s3_pause(const S3RetryPolicy& policy, int failures, double uniform,
                                   std::optional<std::chrono::seconds> asked) {
  std::chrono::milliseconds longest = policy.first;
  for (int i = 1; i < failures && longest < policy.last; ++i) longest *= 2;
  longest = std::min(longest, policy.last);
  const std::chrono::milliseconds own(
      static_cast<std::int64_t>(static_cast<double>(longest.count()) * (0.5 + 0.5 * uniform)));
  if (!asked) return own;
  return std::max(own, std::min<std::chrono::milliseconds>(*asked, policy.asked_max));
}

std::optional<std::chrono::sys_seconds> parse_http_date(std::string_view text) {
  using namespace std::chrono;
  constexpr std::string_view kMonths = "JanFebMarAprMayJunJulAugSepOctNovDec";
  constexpr std::string_view kShape = "ddd, 00 mmm 0000 00:00:00 GMT";
  if (text.size() != kShape.size()) return std::nullopt;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char shape = kShape[i];
    const bool fits =
        shape == '0' ? text[i] >= '0' && text[i] <= '9' : shape == 'd' || shape == 'm' || text[i] == shape;
    if (!fits) return std::nullopt;
  }
  const auto number = [&](std::size_t begin, std::size_t count) {
    int value = 0;
    for (const char c : text.substr(begin, count)) value = value * 10 + (c - '0');
    return value;
  };
  const std::size_t month_at = kMonths.find(text.substr(8, 3));
  if (month_at == kMonths.npos || month_at % 3 != 0) return std::nullopt;
  const year_month_day date(year(number(12, 4)), month(static_cast<unsigned>(month_at / 3 + 1)),
                            day(static_cast<unsigned>(number(5, 2))));
  if (!date.ok() || number(17, 2) > 23 || number(20, 2) > 59 || number(23, 2) > 60) return std::nullopt;
  return sys_seconds(sys_days(date)) + hours(number(17, 2)) + minutes(number(20, 2)) + seconds(number(23, 2));
}

std::optional<std::chrono::seconds> parse_retry_after(std::string_view text) {
  std::uint32_t seconds = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), seconds);
  if (error != std::errc() || stop != text.data() + text.size()) return std::nullopt;
  return std::chrono::seconds(seconds);
}

}  // namespace flotilla
