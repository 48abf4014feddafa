#pragma once

#include <chrono>
#include <optional>
#include <string_view>

#include "base/status.h"

// What to do about an answer of an S3 server that is not success. Pure.
namespace flotilla {

enum class S3Remedy {
  kNone,           // the same request would fail again
  kAgain,          // nothing has happened; later it may
  kAgainUnsure,    // likewise, but a write may have happened
  kCorrectClock,   // sign again with the server's time
  kReadKeysAgain,  // the keys have expired; files may have new ones by now
  kOtherRegion,    // ask the region that the answer names
};

struct S3Judgement {
  StatusCode code = StatusCode::kInternal;
  S3Remedy remedy = S3Remedy::kNone;
};

// By HTTP status and S3's error code, which may be empty: an answer to HEAD has none, nor has a proxy's.
S3Judgement judge_s3_answer(int http_status, std::string_view error_code);

struct S3RetryPolicy {
  int attempts = 4;                             // that fail one after another without a byte of progress
  std::chrono::milliseconds first{200};         // longest pause after the first failure; doubles with each
  std::chrono::milliseconds last{5'000};        // but never exceeds this,
  std::chrono::milliseconds asked_max{20'000};  // unless the server asks for more, up to this
};

// The pause after the n-th failure, n >= 1: `uniform`, of [0, 1), picks from the upper half of what the policy allows.
// At least what the server asked for, if it did.
std::chrono::milliseconds s3_pause(const S3RetryPolicy& policy, int failures, double uniform,
                                   std::optional<std::chrono::seconds> asked);

// "Fri, 24 May 2013 00:00:00 GMT" (RFC 9110, 5.6.7); nothing for other forms.
std::optional<std::chrono::sys_seconds> parse_http_date(std::string_view text);
// A whole number of seconds; nothing for other forms.
std::optional<std::chrono::seconds> parse_retry_after(std::string_view text);

}  // namespace flotilla
