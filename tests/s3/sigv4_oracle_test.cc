// Our verification of requests that botocore signed: tests/oracles/sigv4_oracle.py makes them.
#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <nlohmann/json.hpp>

#include <fmt/format.h>

#include "s3_server.h"
#include "store/sigv4.h"

namespace flotilla {
namespace {

TEST(SigV4Oracle, ABotocoreRequestIsVerifiedAndAChangedOneIsNot) {
  FLOTILLA_NEED_S3_SERVER();
  FILE* pipe = ::popen(fmt::format("'{}' tests/oracles/sigv4_oracle.py 500", S3Server::python()).c_str(), "r");
  ASSERT_NE(pipe, nullptr);
  std::string text;
  std::array<char, 4096> buffer{};
  while (const std::size_t got = std::fread(buffer.data(), 1, buffer.size(), pipe)) text.append(buffer.data(), got);
  ASSERT_EQ(::pclose(pipe), 0);
  const auto requests = nlohmann::json::parse(text);
  ASSERT_EQ(requests.size(), 500u);
  int in_urls = 0;
  for (const auto& each : requests) {
    SCOPED_TRACE(each.dump());
    SigV4Request request{each["method"], "", {}, {}};
    ASSERT_TRUE(read_request_target(each["target"].get<std::string>(), request).ok());
    for (const auto& [name, value] : each["headers"].items()) request.headers.emplace_back(name, value);
    const auto claim = read_claim(request);
    ASSERT_TRUE(claim.ok()) << claim.status().to_string();
    const std::string secret = each["secret_key"];
    EXPECT_TRUE(verify_request(request, *claim, secret, claim->scope.time).ok());
    EXPECT_EQ(verify_request(request, *claim, secret + "x", claim->scope.time).code(), StatusCode::kPermissionDenied);
    request.path += "x";
    EXPECT_EQ(verify_request(request, *claim, secret, claim->scope.time).code(), StatusCode::kPermissionDenied);
    in_urls += claim->expires.has_value();
  }
  EXPECT_GT(in_urls, 100);
  EXPECT_LT(in_urls, 400);
}

}  // namespace
}  // namespace flotilla
