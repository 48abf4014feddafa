#pragma once

#include <chrono>
#include <string>

#include "base/clock.h"
#include "base/hashing.h"
#include "store/sigv4.h"

namespace flotilla {

// A request as a client signs it, and what the server sees of it.
struct SignedForTests {
  SigV4Request request;  // headers in lower case
  std::string target;
};

inline SignedForTests signed_for_tests(const std::string& method, const std::string& path, NamedValues query,
                                       NamedValues headers, const AwsCredentials& who, std::chrono::sys_seconds now,
                                       std::string_view payload_hash) {
  SignedForTests made;
  made.request = {method, path, std::move(query), std::move(headers)};
  made.request.headers.emplace_back("host", "hub");
  sign_request(made.request, who, {now, "us-east-1"}, payload_hash);
  made.target = request_target(made.request);
  return made;
}

}  // namespace flotilla
