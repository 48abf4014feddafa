#include "hub/s3_request.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fmt/format.h>

namespace flotilla {
namespace {

using namespace std::chrono_literals;

S3Result<S3Request> parse(const std::string& method, const std::string& target, NamedValues headers = {}) {
  SigV4Request request{method, {}, {}, std::move(headers)};
  if (const Status read = read_request_target(target, request); !read.ok()) return s3_error_of(read);
  return parse_s3_request(request, target.substr(0, target.find('?')));
}

S3Request parsed(const std::string& method, const std::string& target, NamedValues headers = {}) {
  auto result = parse(method, target, std::move(headers));
  if (const auto* error = std::get_if<S3Error>(&result)) {
    ADD_FAILURE() << method << " " << target << ": " << error->code << ": " << error->message;
    return {};
  }
  return std::get<S3Request>(result);
}

std::string refused(const std::string& method, const std::string& target, NamedValues headers = {}) {
  const auto result = parse(method, target, std::move(headers));
  const auto* error = std::get_if<S3Error>(&result);
  return error == nullptr ? "accepted" : fmt::format("{} {}", error->http_status, error->code);
}

TEST(S3Request, PathMethodAndParametersSayWhatIsAskedFor) {
  const std::tuple<const char*, const char*, S3Operation> cases[] = {
      {"GET", "/", S3Operation::kListBuckets},
      {"HEAD", "/ada", S3Operation::kHeadBucket},
      {"HEAD", "/ada/", S3Operation::kHeadBucket},
      {"PUT", "/ada", S3Operation::kCreateBucket},
      {"GET", "/ada?location", S3Operation::kBucketLocation},
      {"GET", "/ada?list-type=2", S3Operation::kList},
      {"GET", "/ada/run/head", S3Operation::kGet},
      {"HEAD", "/ada/run/head", S3Operation::kHead},
      {"DELETE", "/ada/run/head", S3Operation::kDelete},
      {"POST", "/ada/run/x?uploads", S3Operation::kStartUpload},
      {"GET", "/ada/run/x?uploadId=1", S3Operation::kListParts},
      {"DELETE", "/ada/run/x?uploadId=1", S3Operation::kAbortUpload},
      {"GET", "/ada?uploads&prefix=run/&max-uploads=1000", S3Operation::kListUploads},
      {"GET", "/ada/run/head?x-id=GetObject&X-Amz-Signature=0", S3Operation::kGet},
  };
  for (const auto& [method, target, operation] : cases) {
    EXPECT_EQ(parsed(method, target).operation, operation) << method << " " << target;
  }
  const NamedValues empty = {{"content-length", "0"}};
  EXPECT_EQ(parsed("PUT", "/ada/run/head", empty).operation, S3Operation::kPut);
  EXPECT_EQ(parsed("PUT", "/ada/run/x?uploadId=1&partNumber=10000", empty).part_number, 10000);
  EXPECT_EQ(parsed("POST", "/ada/run/x?uploadId=1", empty).operation, S3Operation::kCompleteUpload);
  EXPECT_EQ(parsed("POST", "/ada?delete", empty).operation, S3Operation::kDeleteObjects);
  EXPECT_EQ(parsed("GET", "/ada/run/head").key, "ada/run/head");
  EXPECT_EQ(parsed("GET", "/ada/run/head").owner, "ada");
  EXPECT_EQ(parsed("GET", "/ada/run%5Fx/head").key, "ada/run_x/head");
}

TEST(S3Request, AKeyThatIsMeantToBeTakenForAnotherOneIsRefused) {
  for (const char* path :
       {"/ada/../bob/head", "/ada/%2e%2e/bob", "/ada/run%2Fhead", "/ada/run%2fhead", "/ada//head", "/ada/run/./head",
        "/../etc/passwd", "/ada/run\\head", "/ada/run%5Chead", "/ada/run/h%00", "/ada/%zz", "/ada/run/", "/@store/lock",
        "/ada/@store/x", "/ada/run/h%C3%A9", "//ada/run/head"}) {
    EXPECT_THAT(refused("GET", path), ::testing::StartsWith("400 Inv")) << path;
  }
  EXPECT_EQ(refused("GET", "/ada/" + std::string(256, 'a')), "400 InvalidURI");
}

TEST(S3Request, WhatIsNotDoneIsRefusedAndNotIgnored) {
  EXPECT_EQ(refused("GET", "/ada/run/head?acl"), "501 NotImplemented");
  EXPECT_EQ(refused("GET", "/ada/run/head?versionId=1"), "501 NotImplemented");
  EXPECT_EQ(refused("GET", "/ada/run/head?response-content-type=a"), "501 NotImplemented");
  EXPECT_EQ(refused("GET", "/ada?versions"), "501 NotImplemented");
  EXPECT_EQ(refused("GET", "/ada?delimiter=x"), "501 NotImplemented");
  EXPECT_EQ(refused("POST", "/ada/run/head"), "405 MethodNotAllowed");
  EXPECT_EQ(refused("DELETE", "/ada"), "405 MethodNotAllowed");
  EXPECT_EQ(refused("PATCH", "/"), "405 MethodNotAllowed");
  const auto put = [](NamedValues headers) {
    headers.emplace_back("content-length", "1");
    return refused("PUT", "/ada/run/x", std::move(headers));
  };
  EXPECT_EQ(put({{"x-amz-copy-source", "ada/run/y?versionId=1"}}), "501 NotImplemented");
  EXPECT_EQ(put({{"x-amz-copy-source", "ada/run/y"}, {"x-amz-copy-source-if-match", "\"a\""}}), "501 NotImplemented");
  EXPECT_EQ(refused("PUT", "/ada/run/x?uploadId=1&partNumber=1", {{"x-amz-copy-source", "ada/run/y"}}),
            "501 NotImplemented");
  EXPECT_EQ(refused("GET", "/ada?uploads&key-marker=x"), "501 NotImplemented");
  EXPECT_EQ(put({{"x-amz-acl", "public-read"}}), "501 NotImplemented");
  EXPECT_EQ(put({{"x-amz-acl", "private"}}), "accepted");
  EXPECT_EQ(put({{"if-none-match", "\"a\""}}), "501 NotImplemented");
  EXPECT_EQ(put({{"if-none-match", "*"}, {"if-match", "\"a\""}}), "400 InvalidArgument");
  EXPECT_EQ(put({{"x-amz-checksum-blake3", "a"}}), "501 NotImplemented");
  EXPECT_EQ(refused("DELETE", "/ada/run/x", {{"if-match", "\"a\""}}), "501 NotImplemented");
}

TEST(S3Request, ACopyNamesWhatItIsOf) {
  const auto source = [](const char* text) {
    const S3Request request = parsed("PUT", "/ada/run/x", {{"x-amz-copy-source", text}});
    EXPECT_EQ(request.operation, S3Operation::kCopy);
    return request.copy_source;
  };
  EXPECT_EQ(source("/ada/run/y"), "ada/run/y");
  EXPECT_EQ(source("ada/run/y"), "ada/run/y");
  EXPECT_EQ(source("ada%2Frun%2Fy"), "ada/run/y");  // as some SDKs send it
  for (const char* text : {"a", "/", "ada/../bob/y", "ada/%2e%2e/y", "ada/@store/y", "//ada/run/y", "ada/run/%zz"}) {
    EXPECT_EQ(refused("PUT", "/ada/run/x", {{"x-amz-copy-source", text}}), "400 InvalidArgument") << text;
  }
}

TEST(S3Request, ParametersAreChecked) {
  const NamedValues empty = {{"content-length", "0"}};
  for (const char* part : {"", "0", "10001", "-1", "1x", "+1"}) {
    EXPECT_EQ(refused("PUT", fmt::format("/ada/run/x?uploadId=1&partNumber={}", part), empty), "400 InvalidArgument")
        << part;
  }
  EXPECT_EQ(refused("GET", "/ada?prefix=a&prefix=b"), "400 InvalidArgument");
  EXPECT_EQ(refused("GET", "/ada?list-type=3"), "400 InvalidArgument");
  EXPECT_EQ(refused("GET", "/ada?max-keys=many"), "400 InvalidArgument");
  EXPECT_EQ(refused("GET", "/ada?encoding-type=xml"), "400 InvalidArgument");
}

TEST(S3Request, ABodyNeedsItsLength) {
  EXPECT_EQ(refused("PUT", "/ada/run/x"), "411 MissingContentLength");
  EXPECT_EQ(refused("PUT", "/ada/run/x", {{"transfer-encoding", "chunked"}}), "411 MissingContentLength");
  EXPECT_EQ(refused("PUT", "/ada/run/x", {{"content-length", "-1"}}), "400 InvalidArgument");
  EXPECT_EQ(refused("GET", "/ada/run/x", {{"content-length", "5"}}), "400 InvalidRequest");
  EXPECT_EQ(parsed("PUT", "/ada/run/x", {{"content-length", "5"}}).body.bytes, 5u);
  const NamedValues chunked = {{"content-length", "100"},
                               {"x-amz-content-sha256", "STREAMING-UNSIGNED-PAYLOAD-TRAILER"}};
  EXPECT_EQ(refused("PUT", "/ada/run/x", chunked), "411 MissingContentLength");
  NamedValues right = chunked;
  right.front() = {"transfer-encoding", "chunked"};  // as boto3 does it over TLS
  right.emplace_back("x-amz-decoded-content-length", "50");
  right.emplace_back("x-amz-trailer", "X-Amz-Checksum-CRC32");
  const S3Body body = parsed("PUT", "/ada/run/x", right).body;
  EXPECT_TRUE(body.chunked);
  EXPECT_EQ(body.bytes, 50u);
  EXPECT_EQ(body.trailer, "x-amz-checksum-crc32");
  right.front().second = "gzip, chunked";
  EXPECT_EQ(refused("PUT", "/ada/run/x", right), "411 MissingContentLength");
  right.front() = {"content-length", "100"};
  right.back().second = "x-amz-meta-mood";
  EXPECT_EQ(refused("PUT", "/ada/run/x", right), "501 NotImplemented");
}

TEST(S3Request, AListingSaysWhereItBeginsAndHowMuch) {
  const S3Listing second =
      parsed("GET",
             "/ada?list-type=2&prefix=run%2F&start-after=run/a&continuation-token=run/b&max-keys=5000&delimiter=%2F"
             "&encoding-type=url&fetch-owner=true")
          .listing;
  EXPECT_EQ(second.form, 2);
  EXPECT_EQ(second.prefix, "run/");
  EXPECT_EQ(second.after, "run/b");
  EXPECT_EQ(second.start_after, "run/a");
  EXPECT_EQ(second.limit, 1000u);
  EXPECT_TRUE(second.one_level && second.url_encoded);
  const S3Listing first = parsed("GET", "/ada?prefix=run&marker=run/c&max-keys=7").listing;
  EXPECT_EQ(first.form, 1);
  EXPECT_EQ(first.after, "run/c");
  EXPECT_EQ(first.limit, 7u);
}

TEST(S3Request, ARangeIsAboutOneSectionOrIgnored) {
  const auto range = [](const char* text) { return parsed("GET", "/ada/run/x", {{"range", text}}).range; };
  for (const char* ignored : {"bytes", "bytes=", "bytes=-", "bytes=a-b", "bytes=5-4", "bytes=0-1,3-4", "lines=1-2",
                              "bytes=--1", "bytes=1-99999999999999999999"}) {
    EXPECT_FALSE(range(ignored)) << ignored;
  }
  const auto section = [&](const char* text, std::uint64_t size) {
    const auto found = section_of(*range(text), size);
    return found ? fmt::format("{}+{}", found->offset, found->count) : "none";
  };
  EXPECT_EQ(section("bytes=0-0", 10), "0+1");
  EXPECT_EQ(section("bytes=3-", 10), "3+7");
  EXPECT_EQ(section("bytes=3-100", 10), "3+7");
  EXPECT_EQ(section("bytes=-4", 10), "6+4");
  EXPECT_EQ(section("bytes=-40", 10), "0+10");
  EXPECT_EQ(section("bytes=10-", 10), "none");
  EXPECT_EQ(section("bytes=-0", 10), "none");
  EXPECT_EQ(section("bytes=0-", 0), "none");
  EXPECT_EQ(section("bytes=18446744073709551615-18446744073709551615", 10), "none");
}

TEST(S3Request, AWaitIsReadAmongOtherPreferencesAndHasALimit) {
  const auto wait = [](const char* text) { return parsed("GET", "/ada/run/head", {{"prefer", text}}).wait; };
  EXPECT_EQ(wait("wait=20"), 20s);
  EXPECT_EQ(wait("respond-async, wait=5"), 5s);
  EXPECT_EQ(wait("wait=4000"), kWaitMax);
  EXPECT_EQ(wait("wait=-1"), 0s);
  EXPECT_EQ(wait("waiter=7"), 0s);
}

TEST(S3Request, ATagIsFoundInAList) {
  EXPECT_TRUE(names_tag("\"a\"", "a"));
  EXPECT_TRUE(names_tag("a", "a"));
  EXPECT_TRUE(names_tag("\"b\", \"a\"", "a"));
  EXPECT_TRUE(names_tag("*", "a"));
  EXPECT_FALSE(names_tag("*", "")) << "there is no object";
  EXPECT_FALSE(names_tag("W/\"a\"", "a"));
  EXPECT_FALSE(names_tag("\"ab\"", "a"));
  EXPECT_FALSE(names_tag("", "a"));
}

}  // namespace
}  // namespace flotilla
