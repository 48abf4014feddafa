#include "hub/hub_service.h"

#include <openssl/rand.h>

#include <array>

#include <fmt/format.h>

namespace flotilla {
namespace {

std::string random_id() {
  std::array<std::uint8_t, 8> bytes{};
  FLOTILLA_CHECK(RAND_bytes(bytes.data(), static_cast<int>(bytes.size())) == 1);
  return hex(bytes);
}

bool has_body(const S3Request& request) {
  switch (request.operation) {
    case S3Operation::kPut:
    case S3Operation::kUploadPart:
    case S3Operation::kDeleteObjects:
    case S3Operation::kCompleteUpload: return true;
    default: return request.body.bytes > 0;
  }
}

}  // namespace

HubService::HubService(std::string root, TokenStore& tokens, HubMetrics& metrics, const Clock& clock)
    : metrics_(metrics),
      clock_(clock),
      admission_(tokens, clock),
      objects_(std::move(root), tokens),
      watch_([this](const std::string& key) { return objects_.state_of(key); }) {}

std::unique_ptr<HubService::Call> HubService::begin(SigV4Request request, std::string target, std::string peer) {
  std::unique_ptr<Call> call(new Call(*this, request.method, std::move(target), std::move(peer)));
  auto decided = admission_.admit(std::move(request), call->target_);
  if (const auto* refusal = std::get_if<Refusal>(&decided)) {
    call->early_ = call->refuse(refusal->error, refusal->token);
    return call;
  }
  call->admitted_ = std::get<Admitted>(std::move(decided));
  if (!has_body(call->admitted_->request)) return call;
  auto begun = objects_.begin(*call->admitted_);
  if (const auto* error = std::get_if<S3Error>(&begun)) {
    call->early_ = call->refuse(*error, call->admitted_->token.id);
  } else {
    call->incoming_ = std::get<std::unique_ptr<ObjectService::Incoming>>(std::move(begun));
  }
  return call;
}

// At most a line a minute for each token or stranger and code.
void HubService::warn(const std::string& who, const std::string& peer, const std::string& what, const S3Error& error) {
  log_.warn(fmt::format("{} {}", who, error.code),
            fmt::format("{} ({}): {}: {} {}: {}", who, peer, what, error.http_status, error.code,
                        error.detail.empty() ? error.message : error.detail),
            clock_.monotonic());
}

void HubService::refused(const std::string& peer, const S3Error& error) {
  metrics_.refused(error.code);
  warn(peer, peer, "a request", error);
}

void HubService::connection_refused(const std::string& peer) {
  metrics_.connection_refused();
  warn(peer, peer, "a connection", {503, "SlowDown", "there are too many, of this address or of all"});
}

HubService::Call::Call(HubService& service, std::string method, std::string target, std::string peer)
    : service_(service),
      method_(std::move(method)),
      target_(std::move(target)),
      peer_(std::move(peer)),
      id_(random_id()),
      start_(service.clock_.monotonic()) {}

HubService::Call::~Call() {
  if (waiting_) service_.metrics_.waiting_changed(-1);
  if (!admitted_ || status_ == 0) return;
  service_.metrics_.request_ended(s3_operation_name(admitted_->request.operation), status_,
                                  service_.clock_.monotonic() - start_);
}

bool HubService::Call::take(ByteSpan bytes) {
  service_.metrics_.received(bytes.size());
  const Status taken = incoming_->take(bytes);
  if (taken.ok()) return true;
  early_ = refuse(ObjectService::body_error(taken), admitted_->token.id);
  incoming_.reset();
  return false;
}

bool HubService::Call::may_wait() const {
  return admitted_ && !early_ && admitted_->request.operation == S3Operation::kGet &&
         admitted_->request.if_none_match && admitted_->request.wait.count() > 0;
}

std::optional<HubAnswer> HubService::Call::answer(bool last) {
  if (early_) return std::move(early_);
  auto result = incoming_ ? service_.objects_.finish(*admitted_, *incoming_) : service_.objects_.answer(*admitted_);
  incoming_.reset();
  if (const auto* error = std::get_if<S3Error>(&result)) return refuse(*error, admitted_->token.id);
  HubAnswer& answer = std::get<HubAnswer>(result);
  const auto waited = service_.clock_.monotonic() - start_;
  if (answer.status == 304 && may_wait() && !last && waited < admitted_->request.wait) {
    if (!waiting_) service_.metrics_.waiting_changed(1);
    waiting_ = true;
    return std::nullopt;
  }
  service_.admission_.took_effect(*admitted_);
  if (answer.refused) note(*answer.refused, admitted_->token.id);
  return dressed(std::move(answer));
}

std::unique_ptr<KeyWatch::Waiter> HubService::Call::wait(std::function<void()> ring) {
  return std::make_unique<KeyWatch::Waiter>(service_.watch_, admitted_->request.key, std::move(ring));
}

void HubService::Call::note(const S3Error& error, const std::string& token) {
  service_.metrics_.refused(error.code);
  // What clients meet in the course of a run is no news.
  const bool usual = error.http_status == 404 || error.http_status == 412 || error.http_status == 409;
  if (!usual) {
    // The query of a presigned URL is a secret.
    const std::string path = target_.substr(0, std::min<std::size_t>(target_.find('?'), 256));
    service_.warn(token.empty() ? peer_ : fmt::format("token {}", token), peer_,
                  fmt::format("{} {}", method_.substr(0, 16), path), error);
  }
}

HubAnswer HubService::Call::refuse(const S3Error& error, const std::string& token) {
  note(error, token);
  const std::size_t mark = target_.find('?');
  return dressed(error_answer(error, std::string_view(target_).substr(0, mark), id_));
}

HubAnswer HubService::Call::dressed(HubAnswer answer) {
  answer.headers.emplace_back("x-amz-request-id", id_);
  status_ = answer.status;
  return answer;
}

}  // namespace flotilla
