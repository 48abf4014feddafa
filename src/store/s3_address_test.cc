#include "store/s3_address.h"

#include <gtest/gtest.h>

namespace flotilla {
namespace {

std::string url(const char* text, const AwsSettings& settings = {}) {
  const auto address = parse_s3_address(text);
  if (!address.ok()) return address.status().to_string();
  const auto target = s3_target(*address, settings);
  if (!target.ok()) return target.status().to_string();
  Url whole = target->endpoint;
  whole.path = target->path(target->object_key("k"));
  return whole.text() + " " + target->region;
}

TEST(S3AddressTest, GoesToAmazonUnlessAnEndpointIsNamed) {
  EXPECT_EQ(url("s3://my-bucket/a/b"), "https://my-bucket.s3.us-east-1.amazonaws.com/a/b/k us-east-1");
  EXPECT_EQ(url("s3://my.bucket/a"), "https://s3.us-east-1.amazonaws.com/my.bucket/a/k us-east-1");
  EXPECT_EQ(url("s3://bucket?region=cn-north-1"), "https://bucket.s3.cn-north-1.amazonaws.com.cn/k cn-north-1");
  EXPECT_EQ(url("s3://bucket?style=path"), "https://s3.us-east-1.amazonaws.com/bucket/k us-east-1");
  EXPECT_EQ(url("s3://bucket/?endpoint=http://[::1]:9000/"), "http://[::1]:9000/bucket/k us-east-1");
  EXPECT_EQ(url("s3://bucket/p/?endpoint=https%3A%2F%2Fh%3A9000/base&region=auto"),
            "https://h:9000/base/bucket/p/k auto");
  EXPECT_EQ(url("s3://bucket?endpoint=https://h&style=virtual"), "https://bucket.h/k us-east-1");
}

TEST(S3AddressTest, OfAServerHasTheBucketInTheKeys) {
  const auto target = s3_target(*parse_s3_address("https://hub.example:9000/?region=auto"), {}).value();
  EXPECT_EQ(target.path(target.object_key("ada/demo/head")), "/ada/demo/head");
  EXPECT_EQ(target.where("ada/demo/head"), "https://hub.example:9000/ada/demo/head");
  EXPECT_EQ(target.endpoint.authority(), "hub.example:9000");
  EXPECT_FALSE(target.amazon);
  const char* pinned = "https://h?pin=sha256//JfpDyTVUXrBU6rxcwrVw1PNgPk8l6hEEu5DCTG0QZ2g=";
  EXPECT_EQ(parse_s3_address(pinned)->pin, "sha256//JfpDyTVUXrBU6rxcwrVw1PNgPk8l6hEEu5DCTG0QZ2g=");
}

TEST(S3AddressTest, AnErrorDoesNotRepeatKeys) {
  for (const char* text : {"https://id:secret@hub.example", "s3://bucket?endpoint=https://id:secret%40hub.example",
                           "s3://bucket?endpoint=https://id:secret@hub.example&style=none"}) {
    const Status status = parse_s3_address(text).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << text;
    EXPECT_EQ(status.message().find("secret"), std::string::npos) << status.message();
  }
}

TEST(S3AddressTest, LeavesTheRestToTheSettings) {
  AwsSettings settings;
  settings.region = "auto";
  settings.endpoint = "https://h:1";
  settings.addressing_style = "virtual";
  EXPECT_EQ(url("s3://bucket", settings), "https://bucket.h:1/k auto");
  EXPECT_EQ(url("s3://bucket?region=r2&style=path&endpoint=http://e", settings), "http://e/bucket/k r2");
}

TEST(S3AddressTest, FollowsABucketIntoItsRegion) {
  const auto target = [](const char* text) { return *s3_target(*parse_s3_address(text), {}); };
  EXPECT_EQ(target("s3://bucket").in_region("eu-west-1").endpoint.host, "bucket.s3.eu-west-1.amazonaws.com");
  EXPECT_EQ(target("s3://my.bucket").in_region("eu-west-1").endpoint.host, "s3.eu-west-1.amazonaws.com");
  const S3Target other = target("s3://bucket?endpoint=http://h").in_region("eu-west-1");
  EXPECT_EQ(other.endpoint.host, "h");
  EXPECT_EQ(other.region, "eu-west-1");
}

TEST(S3AddressTest, RefusesWhatItDoesNotKnow) {
  for (const char* text : {"",
                           "/srv/hub",
                           "s3:/bucket",
                           "s3://",
                           "s3://ab",
                           "s3://a b c",
                           "s3://bucket//x",
                           "s3://bucket/a b",
                           "s3://bucket/..",
                           "https://",
                           "https://h x",
                           "https://a:b@h",
                           "https://h?style=path",
                           "https://h?pin=sha256//x",
                           "s3://bucket?pin=x",
                           "s3://bucket?x",
                           "s3://bucket?region=",
                           "s3://bucket?reigon=r",
                           "s3://bucket?region=a&region=b",
                           "s3://bucket?style=dns",
                           "s3://bucket?region=A/b",
                           "s3://bucket?endpoint=h:9000",
                           "s3://bucket?endpoint=http://a:b@h",
                           "s3://bucket?single-writer=no",
                           "https://h?single-writer=yes",
                           "s3://bucket?endpoint=%zz"}) {
    EXPECT_EQ(parse_s3_address(text).status().code(), StatusCode::kInvalidArgument) << text;
  }
  EXPECT_EQ(s3_target(*parse_s3_address("s3://Buck_et?style=virtual"), {}).status().code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(s3_target(*parse_s3_address("s3://bucket?style=virtual&endpoint=http://[::1]"), {}).status().code(),
            StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace flotilla
