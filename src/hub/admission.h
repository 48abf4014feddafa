#pragma once

#include <map>
#include <mutex>
#include <string>
#include <variant>

#include "base/clock.h"
#include "hub/limits.h"
#include "hub/s3_request.h"
#include "hub/token_store.h"

namespace flotilla {

// A request that its token may make.
struct Admitted {
  S3Request request;
  HubToken token;
  std::string secret;
  SigV4Claim claim;
};

struct Refusal {
  S3Error error;
  std::string token;  // whose it is, if the signature was right
};

// Decides who asks, and whether they may: signature, clock, replays, rate, what is asked for, access, size. Nothing of
// the objects is looked at. Thread safe.
class HubAdmission {
 public:
  HubAdmission(TokenStore& tokens, const Clock& clock) : tokens_(tokens), clock_(clock) {}

  // `request` has headers in lower case; its path and query are made of the target.
  std::variant<Admitted, Refusal> admit(SigV4Request request, std::string_view target);
  // The request has changed something: from now on its signature is refused, unless it comes again at once, as of a
  // client that has lost the answer.
  void took_effect(const Admitted& admitted);

 private:
  std::chrono::sys_seconds now() const {
    return std::chrono::sys_seconds(std::chrono::floor<std::chrono::seconds>(clock_.wall()));
  }
  bool is_replay(const SigV4Claim& claim);

  TokenStore& tokens_;
  const Clock& clock_;
  Throttle throttle_;
  std::mutex mutex_;                                         // guards those below
  std::map<std::string, std::chrono::sys_seconds> effects_;  // signatures, with the time that they were made at
  std::chrono::sys_seconds swept_{};
};

// May the token do that? DeleteObjects is decided key by key.
Status check_request_access(const HubToken& token, const S3Request& request);

}  // namespace flotilla
