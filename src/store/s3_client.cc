#include "store/s3_client.h"

#include <algorithm>
#include <random>

#include <fmt/format.h>

#include "base/hashing.h"
#include "base/log.h"

namespace flotilla {
namespace {

constexpr std::size_t kTextBytesMax = 16 << 20;  // of a listing of 1,000 keys with all that servers add
constexpr std::uint64_t kProgressBytes = 64 << 10;
// What no reading of a clock explains; AWS refuses from 15 minutes on.
constexpr std::chrono::seconds kClockTolerance{5 * 60};

bool is_success(int status) { return status / 100 == 2; }

}  // namespace

Result<std::unique_ptr<S3Client>> S3Client::open(std::string_view text, S3Options options, std::stop_token calm) {
  FLOTILLA_ASSIGN_OR_RETURN(S3Address address, parse_s3_address(text));
  std::unique_ptr<S3Client> client(new S3Client(std::move(address), std::move(options)));
  FLOTILLA_ASSIGN_OR_RETURN(const AwsFiles files, read_aws_files(client->options_.environment));
  FLOTILLA_ASSIGN_OR_RETURN(const AwsSettings settings,
                            aws_settings(files, client->address_.profile, client->options_.environment));
  FLOTILLA_ASSIGN_OR_RETURN(client->target_, s3_target(client->address_, settings));
  client->http_ = std::make_unique<HttpClient>(TlsTrust{settings.ca_bundle, client->address_.pin},
                                               client->options_.environment, client->options_.times);
  std::random_device device;
  client->calm_ = std::make_unique<StopEvent>(std::move(calm));
  client->random_ = PhiloxStream(std::uint64_t{device()} << 32 | device(), 0);
  FLOTILLA_RETURN_IF_ERROR(client->read_settings());
  return client;
}

Status S3Client::read_settings() {
  FLOTILLA_ASSIGN_OR_RETURN(const AwsFiles files, read_aws_files(options_.environment));
  FLOTILLA_ASSIGN_OR_RETURN(const AwsSettings settings, aws_settings(files, address_.profile, options_.environment));
  if (!settings.credentials) {
    return permission_denied(
        "no keys for S3: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or put them into ~/.aws/credentials and name "
        "their section with AWS_PROFILE or profile= in the address");
  }
  const std::lock_guard lock(mutex_);
  credentials_ = *settings.credentials;
  key_source_ = settings.source;
  return ok_status();
}

std::string S3Client::object_key(std::string_view key) const {
  const std::lock_guard lock(mutex_);
  return target_.object_key(key);
}

std::string S3Client::where(std::string_view key) const {
  const std::lock_guard lock(mutex_);
  return target_.where(target_.object_key(key));
}

double S3Client::uniform() {
  const std::lock_guard lock(mutex_);
  return random_.uniform();
}

Result<S3Answer> S3Client::call(const S3Call& call) {
  const StopEvent never({});
  return this->call([&] { return call; }, nullptr, never);
}

Result<S3Answer> S3Client::call(const std::function<S3Call()>& make, const BodySink& sink, const StopEvent& stop) {
  bool unsure = false;
  bool remedied[6] = {};
  for (int failures = 1;; ++failures) {
    const S3Call call = make();
    Attempt done = attempt(call, sink, stop);
    if (done.status.ok()) {
      done.answer.unsure = unsure;
      return std::move(done.answer);
    }
    if (stop.requested()) return cancelled(fmt::format("{} {}: asked to stop", call.method, call.object));
    if (done.moved >= kProgressBytes) failures = 0;
    const bool again = done.remedy == S3Remedy::kAgain || done.remedy == S3Remedy::kAgainUnsure;
    if (done.remedy == S3Remedy::kAgainUnsure) unsure = true;
    if (!again) {
      bool& tried = remedied[static_cast<int>(done.remedy)];
      if (tried || !remedy(done)) return done.status;
      tried = true;
      --failures;  // not of the server
      continue;
    }
    if (failures >= options_.retry.attempts || calm_->requested()) return done.status;
    const auto pause = s3_pause(options_.retry, std::max(failures, 1), uniform(),
                                parse_retry_after(done.answer.head.header("retry-after")));
    log_warning("store", "{}, again in {} ms", done.status.to_string(), pause.count());
    if (!pause_for(pause, stop, *calm_).ok()) return done.status;
  }
}

S3Client::Attempt S3Client::attempt(const S3Call& call, const BodySink& sink, const StopEvent& stop) {
  const std::string payload_hash = sha256(call.body).to_hex();
  SigV4Request request;
  HttpRequest http;
  S3Target target;
  {
    const std::lock_guard lock(mutex_);
    target = target_;
    request = {call.method, target.path(call.object), call.query, call.headers};
    request.headers.emplace_back("host", target.endpoint.authority());
    sign_request(request, credentials_, {options_.now() + clock_offset_, target.region}, payload_hash);
  }
  http = {call.method, request_target(request), std::move(request.headers), call.body, call.answer_within};

  Attempt result;
  const auto take = [&](const HttpAnswer& head, ByteSpan piece) -> Status {
    if (is_success(head.status) && sink) {
      result.moved += piece.size();
      return sink(head, piece);
    }
    if (result.answer.text.size() + piece.size() > kTextBytesMax) {
      return internal_error(fmt::format("an answer of more than {} bytes", kTextBytesMax));
    }
    result.answer.text += as_text(piece);
    return ok_status();
  };
  auto answer = http_->exchange(target.endpoint, http, take, stop, result.sent);
  if (answer.ok()) {
    result.answer.head = *std::move(answer);
    judge(call, target, result);
  } else {
    result.status = std::move(answer).status();
    const bool may_pass =
        result.status.code() == StatusCode::kUnavailable || result.status.code() == StatusCode::kDeadlineExceeded;
    if (may_pass) result.remedy = result.sent ? S3Remedy::kAgainUnsure : S3Remedy::kAgain;
  }
  if (!result.status.ok()) {
    result.status = std::move(result.status).with_context(fmt::format("{} {}", call.method, target.where(call.object)));
  }
  return result;
}

void S3Client::judge(const S3Call& call, const S3Target& target, Attempt& attempt) const {
  const int status = attempt.answer.head.status;
  const bool wanted = std::find(call.accepted.begin(), call.accepted.end(), status) != call.accepted.end();
  // An error may come with the status 200, after a copy or the end of a multipart upload.
  if (is_success(status) && attempt.answer.text.find("<Error") == std::string::npos) return;
  attempt.error = parse_s3_error(attempt.answer.text);
  if (wanted || (is_success(status) && attempt.error.code.empty())) return;
  S3Judgement judgement = judge_s3_answer(status, attempt.error.code);
  std::string advice;
  // Answers to HEAD have no code.
  if (attempt.error.code.empty() && status == 403) {
    const auto date = parse_http_date(attempt.answer.head.header("date"));
    const auto own = options_.now() + [&] {
      const std::lock_guard lock(mutex_);
      return clock_offset_;
    }();
    if (date && (*date - own > kClockTolerance || own - *date > kClockTolerance)) {
      judgement.remedy = S3Remedy::kCorrectClock;
    }
  }
  if (attempt.error.code.empty() && status == 400 && call.method == "HEAD") {
    judgement.remedy = S3Remedy::kReadKeysAgain;
  }
  if (judgement.code == StatusCode::kPermissionDenied) {
    const std::lock_guard lock(mutex_);
    advice = fmt::format("; keys from {}", key_source_);
  }
  if (judgement.remedy == S3Remedy::kOtherRegion) {
    advice = fmt::format("; asked in region {} at {}: region= and endpoint= in the address say where the bucket is",
                         target.region, target.endpoint.text());
  }
  attempt.remedy = judgement.remedy;
  attempt.status =
      Status(judgement.code,
             fmt::format("answered {}{}{}{}{}{}", status, attempt.error.code.empty() ? "" : " ", attempt.error.code,
                         attempt.error.message.empty() ? "" : ", ", attempt.error.message, advice));
}

bool S3Client::remedy(const Attempt& attempt) {
  switch (attempt.remedy) {
    case S3Remedy::kCorrectClock: return correct_clock(attempt);
    case S3Remedy::kReadKeysAgain: return read_keys_again();
    case S3Remedy::kOtherRegion: return follow_region(attempt);
    default: return false;
  }
}

bool S3Client::correct_clock(const Attempt& attempt) {
  const auto date = parse_http_date(attempt.answer.head.header("date"));
  if (!date) return false;
  const std::lock_guard lock(mutex_);
  clock_offset_ = *date - options_.now();
  log_warning("store", "this machine's clock is {} s {} the server's; requests carry the server's time",
              std::abs(clock_offset_.count()), clock_offset_.count() > 0 ? "behind" : "ahead of");
  return true;
}

bool S3Client::read_keys_again() {
  std::string before;
  {
    const std::lock_guard lock(mutex_);
    before = credentials_.access_key + credentials_.secret_key + credentials_.session_token;
  }
  if (!read_settings().ok()) return false;
  const std::lock_guard lock(mutex_);
  return before != credentials_.access_key + credentials_.secret_key + credentials_.session_token;
}

bool S3Client::follow_region(const Attempt& attempt) {
  std::string region(attempt.answer.head.header("x-amz-bucket-region"));
  if (region.empty()) region = attempt.error.region;
  const std::lock_guard lock(mutex_);
  if (region.empty() || region == target_.region) return false;
  log_info("store", "bucket {} is in region {}", target_.bucket, region);
  target_ = target_.in_region(region);
  return true;
}

}  // namespace flotilla
