#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <string>

#include "store/s3_store.h"

namespace flotilla {

// PyPI's moto in a process of its own, with signatures checked: tests/oracles/s3_server.py. One for all tests, which
// keep apart by prefixes.
struct S3Server {
  std::uint16_t port = 0;
  std::uint16_t tls_port = 0;  // the same over TLS, at IPv4 and IPv6
  std::string pin;             // of its key
  std::string ca_bundle;       // the certificate, for 127.0.0.1 and ::1
  std::string access_key;
  std::string secret_key;
  std::string bucket;
  std::string unconditional_bucket;  // ignores If-Match and If-None-Match

  // The interpreter of the virtual environment, or nothing.
  static std::string python();
  // Null, with the reason printed, when the packages are not there.
  static const S3Server* shared();
  // A prefix that nobody else has.
  std::string fresh_prefix() const;
  // s3://... of a prefix, asked at `at_port` of this machine.
  std::string address(const std::string& prefix, std::uint16_t at_port) const;
  std::string address(const std::string& prefix) const { return address(prefix, port); }
  // The keys in the environment, short pauses and times.
  S3Options options(std::map<std::string, std::string> others = {}) const;
};

// Where FLOTILLA_VENV says that the packages are there, as ./run test does, their absence is a failure; without it the
// test is skipped.
#define FLOTILLA_NEED_S3_SERVER()                                                  \
  do {                                                                             \
    if (S3Server::shared() == nullptr) {                                           \
      if (std::getenv("FLOTILLA_VENV") != nullptr) FAIL() << "moto did not start"; \
      GTEST_SKIP() << "./run setup installs moto";                                 \
    }                                                                              \
  } while (false)

}  // namespace flotilla
