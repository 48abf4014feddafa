#include "base/user_folders.h"

#include <cstdlib>
#include <filesystem>
#include <optional>

#include <gtest/gtest.h>

namespace flotilla {
namespace {

// Sets a variable, or unsets it with nullptr, for as long as the object lives.
class ScopedVariable {
 public:
  ScopedVariable(const char* name, const char* value) : name_(name) {
    if (const char* held = std::getenv(name)) before_ = held;
    assign(value);
  }
  ~ScopedVariable() { assign(before_ ? before_->c_str() : nullptr); }

 private:
  void assign(const char* value) { value != nullptr ? ::setenv(name_, value, 1) : ::unsetenv(name_); }
  const char* name_;
  std::optional<std::string> before_;
};

TEST(UserFolders, FollowTheEnvironment) {
  const ScopedVariable home("HOME", "/home/a");
  const auto config = [](const char* value) {
    const ScopedVariable variable("XDG_CONFIG_HOME", value);
    return user_config_folder().string();
  };
  EXPECT_EQ(config("/config"), "/config/flotilla");
  EXPECT_EQ(config(nullptr), "/home/a/.config/flotilla");
  EXPECT_EQ(config("relative"), "/home/a/.config/flotilla");
  EXPECT_EQ(config(""), "/home/a/.config/flotilla");
  const ScopedVariable cache("XDG_CACHE_HOME", "/cache"), state("XDG_STATE_HOME", nullptr);
  EXPECT_EQ(user_cache_folder(), "/cache/flotilla");
  EXPECT_EQ(user_state_folder(), "/home/a/.local/state/flotilla");
}

TEST(UserFolders, AHubHasOneNameHoweverItsPathIsWritten) {
  const std::string here = std::filesystem::current_path().string();
  EXPECT_EQ(hub_folder_name(here + "/hub"), hub_folder_name("hub"));
  EXPECT_EQ(hub_folder_name(here + "/a/../hub/"), hub_folder_name("./hub/"));
  EXPECT_NE(hub_folder_name("hub"), hub_folder_name("other"));
  EXPECT_EQ(hub_folder_name("hub").size(), 16u);
  EXPECT_EQ(hub_folder_name("s3://b/p/?region=r&endpoint=http://h&profile=q"),
            hub_folder_name("s3://b/p?endpoint=http://h"));
  EXPECT_EQ(hub_folder_name("s3://b/p"), hub_folder_name("s3://b/p?region=r"));
  EXPECT_NE(hub_folder_name("s3://b/p"), hub_folder_name("s3://b/p?endpoint=http://h"));
  EXPECT_NE(hub_folder_name("s3://b/p"), hub_folder_name("s3://b/q"));
}

}  // namespace
}  // namespace flotilla
