#include "store/directory_tree.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/files.h"

namespace flotilla {
namespace {

using ::testing::ElementsAre;

class DirectoryTreeTest : public ::testing::Test {
 protected:
  void write(std::string_view key, std::string_view text = "x") {
    const auto upload = tree_.begin(key).value();
    ASSERT_TRUE(append(upload.file(), as_bytes(text), key).ok());
    ASSERT_TRUE(tree_.create(upload, key).ok());
  }
  std::vector<std::string> level(std::string_view prefix, std::string_view after = {}, std::size_t limit = 1000) {
    std::vector<std::string> keys;
    const auto page = tree_.list(prefix, after, limit, DirectoryTree::Depth::kOneLevel).value();
    for (const auto& entry : page.entries) keys.push_back(entry.key);
    if (!page.next.empty()) keys.push_back("next " + page.next);
    return keys;
  }
  TemporaryFolder folder_;
  const DirectoryTree tree_{folder_.path().string()};
};

TEST_F(DirectoryTreeTest, OneLevelShowsWhatContinuesAsOneEntry) {
  for (const char* key : {"a/b/c", "a/b/d", "a/b-", "a/e", "a/f/g", "h"}) write(key);
  EXPECT_THAT(level(""), ElementsAre("a/", "h"));
  EXPECT_THAT(level("a"), ElementsAre("a/"));
  EXPECT_THAT(level("a/"), ElementsAre("a/b-", "a/b/", "a/e", "a/f/")) << "in the order of the keys";
  EXPECT_THAT(level("a/b"), ElementsAre("a/b-", "a/b/"));
  EXPECT_THAT(level("a/", "", 2), ElementsAre("a/b-", "a/b/", "next a/b/"));
  EXPECT_THAT(level("a/", "a/b/", 2), ElementsAre("a/e", "a/f/")) << "what was told is not told again";
  EXPECT_THAT(level("a/", "a/b/c"), ElementsAre("a/b/", "a/e", "a/f/")) << "some of it comes after";
  EXPECT_THAT(level("a/", "a/z"), ElementsAre());
}

TEST_F(DirectoryTreeTest, AnUploadWithoutANameLeavesNothing) {
  { const auto upload = tree_.begin("a").value(); }
  EXPECT_TRUE(std::filesystem::is_empty(folder_.path() / kStoreFolder / "partial"));
  EXPECT_EQ(tree_.open("a").status().code(), StatusCode::kNotFound);
}

TEST_F(DirectoryTreeTest, AReplacementIsDecidedOnThePresentObject) {
  write("a", "12345");
  const auto upload = tree_.begin("a").value();
  const auto refused = tree_.replace(upload, "a", [](const OpenFile* present) {
    return present != nullptr && present->size == 5 ? failed_precondition("no") : ok_status();
  });
  EXPECT_EQ(refused.code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(tree_.open("a")->size, 5u);
  EXPECT_TRUE(tree_.replace(upload, "a", [](const OpenFile*) { return ok_status(); }).ok());
  EXPECT_EQ(tree_.open("a")->size, 0u);
}

}  // namespace
}  // namespace flotilla
