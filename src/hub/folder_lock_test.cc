#include "hub/folder_lock.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/files.h"

namespace flotilla {
namespace {

TEST(FolderLock, OneServerAtATimeHasTheFolder) {
  const TemporaryFolder folder;
  {
    const auto first = lock_hub_folder(folder.path().string());
    ASSERT_TRUE(first.ok() && first->valid());
    const auto second = lock_hub_folder(folder.path().string(), std::chrono::seconds(0));
    EXPECT_EQ(second.status().code(), StatusCode::kFailedPrecondition);
    EXPECT_THAT(second.status().message(), ::testing::HasSubstr("another hub server"));
  }
  EXPECT_TRUE(lock_hub_folder(folder.path().string()).ok());
}

TEST(FolderLock, AFolderWithoutALockIsServed) {
  const auto lock = lock_hub_folder("/nonexistent");
  ASSERT_TRUE(lock.ok());
  EXPECT_FALSE(lock->valid());
}

}  // namespace
}  // namespace flotilla
