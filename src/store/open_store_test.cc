#include "store/open_store.h"

#include <gtest/gtest.h>

#include "base/files.h"

namespace flotilla {
namespace {

TEST(OpenStoreTest, OpensAFolder) {
  const TemporaryFolder folder;
  const auto store = open_store((folder.path() / "hub").string(), true);
  ASSERT_TRUE(store.ok()) << store.status().to_string();
  EXPECT_TRUE((*store)->put("k", as_bytes("1")).ok());
  EXPECT_EQ(open_store((folder.path() / "none").string(), false).status().code(), StatusCode::kNotFound);
}

TEST(OpenStoreTest, RefusesAddressesThatItDoesNotKnow) {
  for (const char* address : {"https://", "s3://", "s3://bucket?colour=red", "ftp://a/b"}) {
    EXPECT_EQ(open_store(address, true).status().code(), StatusCode::kInvalidArgument) << address;
  }
}

TEST(OpenStoreTest, PathsGoBeforeTheSettingsOfABucket) {
  EXPECT_EQ(address_below("/srv/hub", "ada/demo"), "/srv/hub/ada/demo");
  EXPECT_EQ(address_below("/srv/what?", "ada/demo"), "/srv/what?/ada/demo");
  EXPECT_EQ(address_below("s3://b", "ada/demo"), "s3://b/ada/demo");
  EXPECT_EQ(address_below("s3://b/p/?endpoint=http://h:1/x", "ada/demo"), "s3://b/p/ada/demo?endpoint=http://h:1/x");
  EXPECT_EQ(split_address("s3://b/p?x=y").settings, "?x=y");
}

}  // namespace
}  // namespace flotilla
