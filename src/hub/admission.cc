#include "hub/admission.h"

#include <fmt/format.h>

namespace flotilla {
namespace {

// A client signs a repetition within the same second with the same signature.
constexpr std::chrono::seconds kRepetitionTime{5};
constexpr std::uint64_t kXmlBytesMax = 2 << 20;  // 1,000 keys of 512 bytes, or 10,000 parts

// The request makes or changes an object, now or later.
bool writes(const S3Request& request) {
  switch (request.operation) {
    case S3Operation::kPut:
    case S3Operation::kCopy:
    case S3Operation::kStartUpload:
    case S3Operation::kUploadPart:
    case S3Operation::kCompleteUpload: return true;
    default: return false;
  }
}

// The request could change something once more if it came again.
bool repeats(const Admitted& admitted) {
  switch (admitted.request.operation) {
    case S3Operation::kPut:
    case S3Operation::kCopy:
    case S3Operation::kCompleteUpload:
      return !admitted.request.if_none_match && !writes_once(admitted.token.grant, admitted.request.key);
    case S3Operation::kDelete:
    case S3Operation::kDeleteObjects:
    case S3Operation::kStartUpload:
    case S3Operation::kAbortUpload: return true;
    default: return false;
  }
}

S3Error too_large(std::uint64_t bytes, std::uint64_t limit) {
  return {413, "EntityTooLarge", fmt::format("{} bytes; at most {} are taken", bytes, limit)};
}

std::optional<S3Error> check_size(const S3Request& request, const TokenLimits& limits) {
  const S3Body& body = request.body;
  const bool stored = request.operation == S3Operation::kPut || request.operation == S3Operation::kUploadPart;
  const std::uint64_t limit = stored ? limits.object_bytes_max : kXmlBytesMax;
  if (body.bytes > limit) return too_large(body.bytes, limit);
  return std::nullopt;
}

}  // namespace

Status check_request_access(const HubToken& token, const S3Request& request) {
  const HubGrant& grant = token.grant;
  const std::string listed = fmt::format("{}/{}", request.owner, request.listing.prefix);
  switch (request.operation) {
    case S3Operation::kListBuckets: return ok_status();
    case S3Operation::kHeadBucket:
    case S3Operation::kListUploads:  // of the token's own
    case S3Operation::kCreateBucket:
    case S3Operation::kDeleteObjects:
    case S3Operation::kBucketLocation:
      return request.owner == owner_of(grant.scope)
                 ? ok_status()
                 : permission_denied(fmt::format("this token is for {}/ only", grant.scope));
    case S3Operation::kList: return check_access(grant, HubAction::kList, listed);
    case S3Operation::kGet:
    case S3Operation::kHead: return check_access(grant, HubAction::kRead, request.key);
    case S3Operation::kDelete: return check_access(grant, HubAction::kRemove, request.key);
    case S3Operation::kCopy:
      // Nothing that a worker writes is what another object holds.
      if (grant.role == HubRole::kWorker) return permission_denied("a worker does not copy");
      FLOTILLA_RETURN_IF_ERROR(check_access(grant, HubAction::kRead, request.copy_source));
      return check_access(grant, HubAction::kWrite, request.key);
    case S3Operation::kPut:
    case S3Operation::kStartUpload:
    case S3Operation::kUploadPart:
    case S3Operation::kListParts:
    case S3Operation::kCompleteUpload:
    case S3Operation::kAbortUpload: return check_access(grant, HubAction::kWrite, request.key);
  }
  return permission_denied("not allowed");
}

std::variant<Admitted, Refusal> HubAdmission::admit(SigV4Request request, std::string_view target) {
  const auto refuse = [](int status, const char* code, std::string message, std::string token = {}) {
    return Refusal{{status, code, std::move(message)}, std::move(token)};
  };
  if (const Status read = read_request_target(target, request); !read.ok()) {
    return refuse(400, "InvalidURI", read.message());
  }
  auto claim = read_claim(request);
  if (claim.status().code() == StatusCode::kPermissionDenied)
    return refuse(403, "AccessDenied", claim.status().message());
  if (!claim.ok()) return refuse(400, "AuthorizationHeaderMalformed", claim.status().message());
  auto token = tokens_.find(claim->access_key);
  if (token.status().code() == StatusCode::kNotFound || (token.ok() && token->revoked)) {
    return refuse(403, "InvalidAccessKeyId", "there is no such token, or it was revoked");
  }
  if (!token.ok()) return Refusal{s3_error_of(token.status()), {}};
  auto secret = tokens_.secret_of(claim->access_key);
  if (!secret.ok()) return Refusal{s3_error_of(secret.status()), {}};
  const auto now = this->now();
  const Status verified = verify_request(request, *claim, *secret, now);
  if (verified.code() == StatusCode::kFailedPrecondition) {
    return refuse(403, "RequestTimeTooSkewed", verified.message());
  }
  if (!verified.ok()) {
    const bool expired = claim->expires && now - claim->scope.time > *claim->expires;
    return refuse(403, expired ? "AccessDenied" : "SignatureDoesNotMatch", verified.message());
  }

  const std::string id = token->id;
  if (!throttle_.take(id, token->limits.requests_per_s, clock_.monotonic())) {
    return refuse(503, "SlowDown", fmt::format("more than {} requests a second", token->limits.requests_per_s), id);
  }
  auto parsed = parse_s3_request(request, target.substr(0, target.find('?')));
  if (auto* error = std::get_if<S3Error>(&parsed)) return Refusal{std::move(*error), id};
  S3Request& wanted = std::get<S3Request>(parsed);
  if (const Status allowed = check_request_access(*token, wanted); !allowed.ok()) {
    return refuse(403, "AccessDenied", allowed.message(), id);
  }
  if (is_replay(*claim)) {
    return refuse(403, "AccessDenied", "this signature has been used: a request is made once", id);
  }
  if (auto error = check_size(wanted, token->limits)) return Refusal{*std::move(error), id};
  HubGrant& grant = token->grant;
  if (grant.role == HubRole::kWorker && grant.worker.empty() && writes(wanted)) {
    grant.worker = worker_of(grant, wanted.key);
    const Status bound = grant.worker.empty() ? ok_status() : tokens_.bind_worker(id, grant.worker);
    if (bound.code() == StatusCode::kPermissionDenied) return refuse(403, "AccessDenied", bound.message(), id);
    if (!bound.ok()) return Refusal{s3_error_of(bound), id};
  }
  return Admitted{std::move(wanted), *std::move(token), *std::move(secret), *std::move(claim)};
}

bool HubAdmission::is_replay(const SigV4Claim& claim) {
  if (claim.expires || now() - claim.scope.time <= kRepetitionTime) return false;
  const std::lock_guard lock(mutex_);
  return effects_.contains(claim.signature);
}

void HubAdmission::took_effect(const Admitted& admitted) {
  // A URL that was signed in advance may be used until it expires.
  if (!repeats(admitted) || admitted.claim.expires) return;
  const auto now = this->now();
  const std::lock_guard lock(mutex_);
  if (now - swept_ > kSkewLimit) {
    std::erase_if(effects_, [&](const auto& effect) { return now - effect.second > kSkewLimit; });
    swept_ = now;
  }
  effects_.emplace(admitted.claim.signature, admitted.claim.scope.time);
}

}  // namespace flotilla
