#include "store/s3_retry.h"

#include <gtest/gtest.h>

#include "store/sigv4.h"

namespace flotilla {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

S3Remedy remedy(int status, std::string_view code = "") { return judge_s3_answer(status, code).remedy; }
StatusCode code(int status, std::string_view error = "") { return judge_s3_answer(status, error).code; }

TEST(S3RetryTest, TriesAgainWhatMayPass) {
  EXPECT_EQ(remedy(503, "SlowDown"), S3Remedy::kAgain);
  EXPECT_EQ(remedy(503), S3Remedy::kAgain);
  EXPECT_EQ(remedy(429), S3Remedy::kAgain);
  EXPECT_EQ(remedy(409, "ConditionalRequestConflict"), S3Remedy::kAgain);
  EXPECT_EQ(remedy(400, "RequestTimeout"), S3Remedy::kAgain);
  EXPECT_EQ(remedy(400, "XAmzContentSHA256Mismatch"), S3Remedy::kAgain);
  EXPECT_EQ(remedy(500, "InternalError"), S3Remedy::kAgainUnsure);
  EXPECT_EQ(remedy(200, "InternalError"), S3Remedy::kAgainUnsure);
  for (const int status : {500, 502, 504, 520}) EXPECT_EQ(remedy(status), S3Remedy::kAgainUnsure) << status;
}

TEST(S3RetryTest, KnowsWhatElseHelps) {
  EXPECT_EQ(remedy(403, "RequestTimeTooSkewed"), S3Remedy::kCorrectClock);
  EXPECT_EQ(remedy(400, "ExpiredToken"), S3Remedy::kReadKeysAgain);
  EXPECT_EQ(remedy(301), S3Remedy::kOtherRegion);
  EXPECT_EQ(remedy(400, "AuthorizationHeaderMalformed"), S3Remedy::kOtherRegion);
}

TEST(S3RetryTest, GivesUpWhatStaysWrong) {
  for (const int status : {400, 401, 403, 404, 405, 411, 412, 413, 416, 501, 507}) {
    EXPECT_EQ(remedy(status), S3Remedy::kNone) << status;
  }
}

TEST(S3RetryTest, MapsAnswersToOurCodes) {
  EXPECT_EQ(code(404, "NoSuchKey"), StatusCode::kNotFound);
  EXPECT_EQ(code(404), StatusCode::kNotFound);
  EXPECT_EQ(code(404, "NoSuchBucket"), StatusCode::kUnavailable);
  EXPECT_EQ(code(403, "AccessDenied"), StatusCode::kPermissionDenied);
  EXPECT_EQ(code(403, "SignatureDoesNotMatch"), StatusCode::kPermissionDenied);
  EXPECT_EQ(code(412, "PreconditionFailed"), StatusCode::kFailedPrecondition);
  EXPECT_EQ(code(501, "NotImplemented"), StatusCode::kInvalidArgument);
  EXPECT_EQ(code(503, "SlowDown"), StatusCode::kUnavailable);
  EXPECT_EQ(code(504), StatusCode::kDeadlineExceeded);
  EXPECT_EQ(code(507, "XMinioStorageFull"), StatusCode::kResourceExhausted);
  EXPECT_EQ(code(400, "InvalidRequest"), StatusCode::kInternal);
}

TEST(S3RetryTest, PausesGrowWithJitterUpToALimit) {
  const S3RetryPolicy policy;
  EXPECT_EQ(s3_pause(policy, 1, 0, {}), milliseconds(100));
  EXPECT_EQ(s3_pause(policy, 1, 0.5, {}), milliseconds(150));
  EXPECT_EQ(s3_pause(policy, 2, 0, {}), milliseconds(200));
  EXPECT_EQ(s3_pause(policy, 1000, 0, {}), milliseconds(2500));
  EXPECT_EQ(s3_pause(policy, 1, 0, seconds(3)), seconds(3));
  EXPECT_EQ(s3_pause(policy, 1, 0, seconds(0)), milliseconds(100));
  EXPECT_EQ(s3_pause(policy, 1, 0, seconds(3600)), seconds(20));
}

TEST(S3RetryTest, ReadsDatesOfHttp) {
  EXPECT_EQ(amz_time(parse_http_date("Fri, 24 May 2013 12:34:56 GMT").value()), "20130524T123456Z");
  for (const char* text :
       {"", "Fri, 24 May 2013 12:34:56", "Fri, 32 May 2013 12:34:56 GMT", "Fri, 24 Mai 2013 12:34:56 GMT",
        "Fri, 24 ayJ 2013 12:34:56 GMT", "Fri, 24 May 2013 24:34:56 GMT", "Fri, 2x May 2013 12:34:56 GMT"}) {
    EXPECT_FALSE(parse_http_date(text)) << text;
  }
  EXPECT_EQ(parse_retry_after("7"), seconds(7));
  for (const char* text : {"", "-1", "7s", "99999999999", "Fri, 24 May 2013 12:34:56 GMT"}) {
    EXPECT_FALSE(parse_retry_after(text)) << text;
  }
}

}  // namespace
}  // namespace flotilla
