#include "hub/s3_error.h"

namespace flotilla {

S3Error s3_error_of(const Status& status) {
  const auto error = [&](int http, const char* code, const char* message) {
    return S3Error{http, code, message, status.message()};
  };
  switch (status.code()) {
    case StatusCode::kInvalidArgument: return error(400, "InvalidArgument", "this cannot be the key of an object here");
    case StatusCode::kPermissionDenied: return error(403, "AccessDenied", "the hub does not give or take this");
    case StatusCode::kNotFound: return error(404, "NoSuchKey", "there is no such object");
    case StatusCode::kAlreadyExists: return error(412, "PreconditionFailed", "the object exists");
    case StatusCode::kFailedPrecondition: return error(412, "PreconditionFailed", "the object has another tag");
    case StatusCode::kDataLoss: return error(400, "BadDigest", "the bytes are not those that were told");
    case StatusCode::kResourceExhausted: return error(507, "QuotaExceeded", "no room is left: disk, or quota");
    case StatusCode::kUnavailable:
    case StatusCode::kDeadlineExceeded: return error(503, "SlowDown", "the hub cannot do that now");
    case StatusCode::kOk:
    case StatusCode::kCancelled:
    case StatusCode::kInternal: break;
  }
  return error(500, "InternalError", "the hub failed; its log says more");
}

}  // namespace flotilla
