#include "cli/run_address.h"

#include <gtest/gtest.h>

#include "base/files.h"

namespace flotilla {
namespace {

TEST(RunAddress, IsAHubAnOwnerAndARun) {
  const auto address = RunAddress::parse("/srv/hub/ada/demo-1");
  ASSERT_TRUE(address.ok()) << address.status().message();
  EXPECT_EQ(address->hub, "/srv/hub");
  EXPECT_EQ(address->owner, "ada");
  EXPECT_EQ(address->run, "demo-1");
  EXPECT_EQ(address->layout().head(), "ada/demo-1/head");
}

TEST(RunAddress, MayBeRelativeAndEndWithASlash) {
  const auto address = RunAddress::parse("out/hub/ada/demo/");
  ASSERT_TRUE(address.ok());
  EXPECT_EQ(address->text(), "out/hub/ada/demo");
}

TEST(RunAddress, OfABucketHasItsSettingsAtTheEnd) {
  const char* text = "s3://bucket/pre/ada/demo?endpoint=http://h:9000/x&region=auto";
  const auto address = RunAddress::parse(text);
  ASSERT_TRUE(address.ok()) << address.status().message();
  EXPECT_EQ(address->hub, "s3://bucket/pre?endpoint=http://h:9000/x&region=auto");
  EXPECT_EQ(address->owner, "ada");
  EXPECT_EQ(address->run, "demo");
  EXPECT_EQ(address->text(), text);
  EXPECT_EQ(RunAddress::parse("s3://bucket/ada/demo/")->hub, "s3://bucket");
  EXPECT_EQ(RunAddress::parse("https://h:9000/ada/demo?pin=x")->hub, "https://h:9000?pin=x");
}

TEST(RunAddress, SaysWhatIsWrongAndWhatIsExpected) {
  for (const char* text :
       {"", "demo", "ada/demo", "/ada/demo", "hub//demo", "hub/a b/demo", "hub/../demo", "ftp://h/a/b", "https://h/a",
        "https:///a/b", "s3://bucket", "s3://bucket/a", "s3:///a/b", "s3://bucket/a?x=/b/c"}) {
    const auto address = RunAddress::parse(text);
    ASSERT_FALSE(address.ok()) << text;
    EXPECT_EQ(address.status().code(), StatusCode::kInvalidArgument);
    EXPECT_NE(address.status().message().find("expected HUB/OWNER/RUN"), std::string::npos);
  }
}

TEST(OpenHub, NamesAFolderThatIsNotThere) {
  const TemporaryFolder folder;
  const auto hub = open_hub(*RunAddress::parse((folder.path() / "none/ada/demo").string()));
  ASSERT_FALSE(hub.ok());
  EXPECT_EQ(hub.status().code(), StatusCode::kNotFound);
  EXPECT_NE(hub.status().message().find("none"), std::string::npos);
}

}  // namespace
}  // namespace flotilla
