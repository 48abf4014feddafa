#include "store/s3_xml.h"

#include <gtest/gtest.h>

namespace flotilla {
namespace {

constexpr std::string_view kListing =
    "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n"
    "<ListBucketResult xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"><Name>bucket</Name><Prefix/>\n"
    "<KeyCount>2</KeyCount><MaxKeys>1000</MaxKeys><IsTruncated>true</IsTruncated>\n"
    "<Contents><Key>a&amp;&#x62;</Key><ETag>&quot;x&quot;</ETag><LastModified>2026-12-01T15:04:54.000Z</"
    "LastModified><Size>12</Size><Owner><ID>1</ID></Owner></Contents>\n"
    "<Contents><Key>b</Key><Size>0</Size></Contents>"
    "<NextContinuationToken>t</NextContinuationToken></ListBucketResult>\n";

TEST(S3XmlTest, ReadsAListing) {
  const auto listing = parse_s3_listing(kListing);
  ASSERT_TRUE(listing.ok()) << listing.status().to_string();
  EXPECT_TRUE(listing->truncated);
  ASSERT_EQ(listing->entries.size(), 2u);
  EXPECT_EQ(listing->entries[0].key, "a&b");
  EXPECT_EQ(listing->entries[0].size, 12u);
  EXPECT_EQ(listing->entries[0].modified.count(), 1796137494);
  EXPECT_EQ(listing->entries[1].key, "b");
  EXPECT_EQ(listing->entries[1].modified.count(), 0);
}

TEST(S3XmlTest, ATimeThatIsNoneIsNotKnown) {
  for (const char* time : {"", "yesterday", "2026-13-01T15:04:54.000Z", "2026-02-30T15:04:54.000Z",
                           "2026-12-01T15:04:54", "2026-12-0aT15:04:54.000Z", "20261201T150454Z0000000Z"}) {
    std::string text(kListing);
    const std::string_view right = "2026-12-01T15:04:54.000Z";
    text.replace(text.find(right), right.size(), time);
    const auto listing = parse_s3_listing(text);
    ASSERT_TRUE(listing.ok());
    EXPECT_EQ(listing->entries[0].modified.count(), 0) << time;
  }
}

TEST(S3XmlTest, RefusesEveryPrefixOfAListing) {
  for (std::size_t size = 0; size + 1 < kListing.size(); ++size) {
    EXPECT_EQ(parse_s3_listing(kListing.substr(0, size)).status().code(), StatusCode::kDataLoss) << size;
  }
}

TEST(S3XmlTest, RefusesAListingThatDoesNotHoldTogether) {
  const auto with = [](std::string_view from, std::string_view to) {
    std::string text(kListing);
    text.replace(text.find(from), from.size(), to);
    return parse_s3_listing(text).status().code();
  };
  EXPECT_EQ(with("<Size>12</Size>", ""), StatusCode::kDataLoss);
  EXPECT_EQ(with("<Size>12</Size>", "<Size>12x</Size>"), StatusCode::kDataLoss);
  EXPECT_EQ(with("<Size>12</Size>", "<Size>-1</Size>"), StatusCode::kDataLoss);
  EXPECT_EQ(with("<Size>12</Size>", "<Size>99999999999999999999</Size>"), StatusCode::kDataLoss);
  EXPECT_EQ(with("<Key>b</Key>", ""), StatusCode::kDataLoss);
  EXPECT_EQ(with("<Key>b</Key>", "<Key>A</Key>"), StatusCode::kDataLoss);
  EXPECT_EQ(with("<IsTruncated>true</IsTruncated>", ""), StatusCode::kDataLoss);
  EXPECT_EQ(with("<IsTruncated>true", "<IsTruncated>yes"), StatusCode::kDataLoss);
  EXPECT_EQ(parse_s3_listing("<ListBucketResult><IsTruncated>true</IsTruncated></ListBucketResult>").status().code(),
            StatusCode::kDataLoss);
  EXPECT_EQ(parse_s3_listing("<Other/>").status().code(), StatusCode::kDataLoss);
}

TEST(S3XmlTest, RefusesWhatIsNotXmlOrMoreThanNeeded) {
  for (const char* text : {"",
                           "a",
                           "<a",
                           "<a>",
                           "<a></b>",
                           "<a></a",
                           "<a/",
                           "<a/><b/>",
                           "<a/>x",
                           "<1/>",
                           "<a b/>",
                           "<a b=c/>",
                           "<a b=\"c/>",
                           "<a b=\"<\"/>",
                           "<a b=\"\"c=\"\"/>",
                           "<a>&b;</a>",
                           "<a>&amp</a>",
                           "<a>&#0;</a>",
                           "<a>&#xd800;</a>",
                           "<a>&#x110000;</a>",
                           "<a>&#x;</a>",
                           "<a>&#-1;</a>",
                           "<a>x<b/></a>",
                           "<!-- --><a/>",
                           "<!DOCTYPE a><a/>",
                           "<a><![CDATA[x]]></a>",
                           "<?xml ",
                           "<a><?b?></a>"}) {
    EXPECT_EQ(parse_xml(text).status().code(), StatusCode::kDataLoss) << text;
  }
  std::string deep;
  for (int i = 0; i < 100'000; ++i) deep += "<a>";
  EXPECT_EQ(parse_xml(deep).status().code(), StatusCode::kDataLoss);
}

TEST(S3XmlTest, ReadsCharacterNumbers) {
  EXPECT_EQ(parse_xml("<a>&#65;&#xe9;&#x20ac;&#x1F600;&lt;&gt;&apos;</a>")->text,
            "A\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80<>'");
}

TEST(S3XmlTest, ReadsAnErrorAndTakesAnythingElseForNone) {
  const S3Refusal error =
      parse_s3_error("<Error><Code>NoSuchKey</Code><Message>none</Message><Region>r</Region></Error>");
  EXPECT_EQ(error.code, "NoSuchKey");
  EXPECT_EQ(error.message, "none");
  EXPECT_EQ(error.region, "r");
  EXPECT_EQ(parse_s3_error("<html>Bad gateway</html>").code, "");
  EXPECT_EQ(parse_s3_error("").code, "");
}

TEST(S3XmlTest, ReadsAndWritesWhatMultipartUploadsNeed) {
  EXPECT_EQ(*parse_upload_id("<InitiateMultipartUploadResult><UploadId>u/1</UploadId></InitiateMultipartUploadResult>"),
            "u/1");
  EXPECT_FALSE(parse_upload_id("<InitiateMultipartUploadResult/>").ok());
  EXPECT_EQ(*parse_completed_etag(
                "  <CompleteMultipartUploadResult><ETag>&quot;a-2&quot;</ETag></CompleteMultipartUploadResult>"),
            "\"a-2\"");
  EXPECT_FALSE(parse_completed_etag("<Error><Code>InternalError</Code></Error>").ok());
  const auto root = parse_xml(complete_upload_xml({"\"a\"", "<&"}));
  ASSERT_TRUE(root.ok());
  ASSERT_EQ(root->children.size(), 2u);
  EXPECT_EQ(root->children[1].child_text("PartNumber"), "2");
  EXPECT_EQ(root->children[0].child_text("ETag"), "\"a\"");
  EXPECT_EQ(root->children[1].child_text("ETag"), "<&");
}

}  // namespace
}  // namespace flotilla
