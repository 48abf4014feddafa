#include "hub/s3_xml.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fmt/format.h>

namespace flotilla {
namespace {

using ::testing::ElementsAre;

TEST(S3Xml, KeysOfADeletionAreRead) {
  const auto body = read_delete_body(
      "\xEF\xBB\xBF<?xml version=\"1.0\"?>\n<Delete xmlns='http://x'>\n "
      "<Object><Key>a&amp;b</Key></Object>"
      "<Object ><Key\n>c&#x2F;d&#233;</Key ></Object><Quiet>true</Quiet></Delete>\n");
  ASSERT_TRUE(body.ok()) << body.status().to_string();
  EXPECT_THAT(body->keys, ElementsAre("a&b", "c/d\xC3\xA9"));
  EXPECT_TRUE(body->quiet);
}

TEST(S3Xml, PartsAreReadInTheirOrder) {
  const auto parts = read_complete_body(
      "<CompleteMultipartUpload><Part><ETag>&quot;x&quot;</ETag><PartNumber>1</PartNumber></Part>"
      "<Part><PartNumber>7</PartNumber><ETag>y</ETag><ChecksumCRC32>AAAA</ChecksumCRC32></Part></"
      "CompleteMultipartUpload>");
  ASSERT_TRUE(parts.ok()) << parts.status().to_string();
  ASSERT_EQ(parts->size(), 2u);
  EXPECT_EQ((*parts)[0].etag, "x");
  EXPECT_EQ((*parts)[1].number, 7);
}

TEST(S3Xml, WhatIsNotWellFormedIsRefused) {
  for (const char* text : {"", "text", "<Delete>", "<Delete><Object></Delete>", "<!DOCTYPE Delete><Delete/>"}) {
    EXPECT_EQ(read_delete_body(text).status().code(), StatusCode::kInvalidArgument) << text;
    EXPECT_EQ(read_complete_body(text).status().code(), StatusCode::kInvalidArgument) << text;
  }
}

TEST(S3Xml, ADeletionHasKeysAndNoVersions) {
  std::string many;
  for (int i = 0; i < 1001; ++i) many += fmt::format("<Object><Key>{}</Key></Object>", i);
  for (const std::string& text :
       {std::string("<Delete/>"), std::string("<Other><Object><Key>a</Key></Object></Other>"),
        "<Delete>" + many + "</Delete>",
        std::string("<Delete><Object><Key>a</Key><VersionId>1</VersionId></Object></Delete>")}) {
    EXPECT_EQ(read_delete_body(text).status().code(), StatusCode::kInvalidArgument) << text.substr(0, 80);
  }
}

TEST(S3Xml, PartsNeedTagsAndRisingNumbers) {
  const auto part = [](const char* number, const char* tag) {
    return fmt::format("<Part><PartNumber>{}</PartNumber><ETag>{}</ETag></Part>", number, tag);
  };
  for (const std::string& parts :
       {std::string(), part("0", "a"), part("10001", "a"), part("x", "a"), part("1", ""),
        part("2", "a") + part("2", "a"), part("2", "a") + part("1", "a"), std::string("<Part><ETag>a</ETag></Part>")}) {
    EXPECT_FALSE(read_complete_body("<CompleteMultipartUpload>" + parts + "</CompleteMultipartUpload>").ok()) << parts;
  }
}

TEST(S3Xml, TextIsEscaped) { EXPECT_EQ(xml_escaped("a<b>&\"\n"), "a&lt;b&gt;&amp;&quot;?"); }

}  // namespace
}  // namespace flotilla
