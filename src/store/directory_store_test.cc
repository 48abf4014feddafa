#include <fcntl.h>
#include <grp.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>

#include <fmt/format.h>

#include "base/files.h"
#include "store/object_store.h"

namespace flotilla {
namespace {

namespace fs = std::filesystem;

class DirectoryStoreTest : public ::testing::Test {
 protected:
  std::unique_ptr<ObjectStore> open(bool create = true) {
    return open_directory_store(root().string(), create).value();
  }
  fs::path root() const { return folder_.path() / "hub"; }
  std::size_t partial_files() const {
    const fs::path partial = root() / "@store" / "partial";
    return static_cast<std::size_t>(std::distance(fs::directory_iterator(partial), fs::directory_iterator()));
  }
  TemporaryFolder folder_;
};

// Runs the body in a child process; its return value, or 255 for a crash, is the exit status.
int in_child(const std::function<int()>& body) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(body());
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 255;
}

TEST_F(DirectoryStoreTest, AMissingFolderIsNotFoundUnlessItIsToBeMade) {
  const auto missing = open_directory_store(root().string(), false);
  EXPECT_EQ(missing.status().code(), StatusCode::kNotFound);
  EXPECT_NE(missing.status().message().find(root().string()), std::string::npos);
  EXPECT_TRUE(open_directory_store(root().string(), true).ok());
  EXPECT_TRUE(open_directory_store(root().string(), false).ok());
  std::ofstream(folder_.path() / "file") << "x";
  EXPECT_EQ(open_directory_store((folder_.path() / "file").string(), false).status().code(),
            StatusCode::kInvalidArgument);
}

TEST_F(DirectoryStoreTest, AFolderThatGoesAwayIsUnavailableNotEmpty) {
  const auto store = open();
  ASSERT_TRUE(store->put_if_absent("a", as_bytes("x")).ok());
  fs::rename(root(), folder_.path() / "away");
  EXPECT_EQ(store->get("a").status().code(), StatusCode::kUnavailable);
  EXPECT_EQ(store->list("", {}, 10).status().code(), StatusCode::kUnavailable);
  EXPECT_EQ(store->put_if_absent("b", as_bytes("x")).status().code(), StatusCode::kUnavailable);
  fs::rename(folder_.path() / "away", root());
  EXPECT_TRUE(store->get("a").ok());
}

TEST_F(DirectoryStoreTest, ObjectsOutliveTheStore) {
  ASSERT_TRUE(open()->put_if_absent("a/b", as_bytes("x")).ok());
  const auto object = open(false)->get("a/b");
  ASSERT_TRUE(object.ok());
  EXPECT_EQ(as_text(object->bytes), "x");
}

TEST_F(DirectoryStoreTest, LeavesNoPartialFilesBehind) {
  const auto store = open();
  const auto etag = store->put_if_absent("a", as_bytes("1"));
  ASSERT_TRUE(etag.ok());
  ASSERT_FALSE(store->put_if_absent("a", as_bytes("2")).ok());
  ASSERT_TRUE(store->put_if_match("a", as_bytes("3"), *etag).ok());
  ASSERT_FALSE(store->put_if_match("a", as_bytes("4"), *etag).ok());
  ASSERT_TRUE(store->put("a", as_bytes("5")).ok());
  EXPECT_EQ(partial_files(), 0u);
}

TEST_F(DirectoryStoreTest, OpeningRemovesOldPartialFilesWhoseWriterIsGone) {
  ASSERT_TRUE(open()->put_if_absent("a", as_bytes("1")).ok());
  const fs::path partial = root() / "@store" / "partial";
  const auto make = [&](const char* name, std::chrono::seconds age) {
    std::ofstream(partial / name) << "half";
    fs::last_write_time(partial / name, fs::file_time_type::clock::now() - age);
  };
  make("old", std::chrono::hours(1));
  make("young", std::chrono::seconds(5));
  make("alive", std::chrono::hours(1));
  const int alive = ::open((partial / "alive").c_str(), O_WRONLY | O_CLOEXEC);
  ASSERT_EQ(::flock(alive, LOCK_EX), 0);
  const auto store = open();
  EXPECT_FALSE(fs::exists(partial / "old"));
  EXPECT_TRUE(fs::exists(partial / "young"));
  EXPECT_TRUE(fs::exists(partial / "alive"));
  EXPECT_EQ(list_all(*store, "")->size(), 1u);
  ::close(alive);
}

TEST_F(DirectoryStoreTest, ListsObjectsAndNothingElse) {
  const auto store = open();
  ASSERT_TRUE(store->put_if_absent("a/b", as_bytes("1")).ok());
  std::ofstream(root() / "a" / "not a key") << "x";
  fs::create_directories(root() / "a" / "empty" / "folder");
  fs::create_symlink(root() / "a" / "b", root() / "a" / "link");
  ASSERT_EQ(::mkfifo((root() / "a" / "pipe").c_str(), 0600), 0);
  const auto objects = list_all(*store, "");
  ASSERT_TRUE(objects.ok());
  ASSERT_EQ(objects->size(), 1u);
  EXPECT_EQ(objects->front().key, "a/b");
  EXPECT_EQ(store->get("a/pipe").status().code(), StatusCode::kPermissionDenied);
}

TEST_F(DirectoryStoreTest, FollowsNoLinkBelowTheRoot) {
  const fs::path outside = folder_.path() / "outside";
  fs::create_directory(outside);
  std::ofstream(outside / "secret") << "secret";
  const auto store = open();
  ASSERT_TRUE(store->put_if_absent("a/b", as_bytes("1")).ok());
  fs::create_symlink(outside, root() / "folder");
  fs::create_symlink(outside / "secret", root() / "file");

  for (const char* key : {"folder/secret", "file"}) {
    EXPECT_EQ(store->get(key).status().code(), StatusCode::kPermissionDenied) << key;
    EXPECT_EQ(store->get_range(key, 0, 1).status().code(), StatusCode::kPermissionDenied) << key;
    EXPECT_EQ(store->remove(key).code(), StatusCode::kPermissionDenied) << key;
  }
  EXPECT_EQ(store->put_if_absent("folder/new", as_bytes("x")).status().code(), StatusCode::kPermissionDenied);
  EXPECT_EQ(store->put("folder/secret", as_bytes("x")).status().code(), StatusCode::kPermissionDenied);
  EXPECT_EQ(store->list("folder/", {}, 10).status().code(), StatusCode::kPermissionDenied);
  EXPECT_FALSE(fs::exists(outside / "new"));
  EXPECT_EQ(read_text_file(outside / "secret").value(), "secret");
}

TEST_F(DirectoryStoreTest, TheRootItselfMayBeALink) {
  open();
  fs::create_symlink(root(), folder_.path() / "link");
  const auto store = open_directory_store((folder_.path() / "link").string(), false);
  ASSERT_TRUE(store.ok());
  EXPECT_TRUE((*store)->put_if_absent("a", as_bytes("x")).ok());
}

TEST_F(DirectoryStoreTest, OfTwelveProcessesThatCreateExactlyOneWins) {
  open();
  for (int round = 0; round < 5; ++round) {
    const std::string key = fmt::format("race/{}", round);
    int start[2];
    ASSERT_EQ(::pipe(start), 0);
    std::vector<pid_t> children;
    for (int i = 0; i < 12; ++i) {
      const pid_t child = ::fork();
      if (child == 0) {
        ::close(start[1]);
        char byte;
        (void)!::read(start[0], &byte, 1);  // until the parent closes its end
        const auto store = open(false);
        const auto result = store->put_if_absent(key, as_bytes(fmt::format("process {}", i)));
        ::_exit(result.ok() ? 0 : result.status().code() == StatusCode::kAlreadyExists ? 1 : 2);
      }
      children.push_back(child);
    }
    ::close(start[0]);
    ::close(start[1]);
    int winner = -1;
    int wins = 0;
    for (int i = 0; i < 12; ++i) {
      int status = 0;
      ASSERT_EQ(::waitpid(children[i], &status, 0), children[i]);
      ASSERT_TRUE(WIFEXITED(status));
      ASSERT_LT(WEXITSTATUS(status), 2);
      if (WEXITSTATUS(status) == 0) {
        winner = i;
        ++wins;
      }
    }
    EXPECT_EQ(wins, 1);
    EXPECT_EQ(as_text(open()->get(key)->bytes), fmt::format("process {}", winner));
  }
}

TEST_F(DirectoryStoreTest, ConditionalWritesOfFourProcessesLoseNoIncrement) {
  ASSERT_TRUE(open()->put_if_absent("counter", as_bytes("0")).ok());
  std::vector<pid_t> children;
  for (int i = 0; i < 4; ++i) {
    const pid_t child = ::fork();
    if (child == 0) {
      const auto store = open(false);
      for (int done = 0; done < 25;) {
        const auto object = store->get("counter");
        if (!object.ok()) ::_exit(2);
        const int value = std::stoi(std::string(as_text(object->bytes)));
        const auto written = store->put_if_match("counter", as_bytes(std::to_string(value + 1)), object->etag);
        if (written.ok()) ++done;
        if (!written.ok() && written.status().code() != StatusCode::kFailedPrecondition) ::_exit(3);
      }
      ::_exit(0);
    }
    children.push_back(child);
  }
  for (const pid_t child : children) {
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  }
  EXPECT_EQ(as_text(open()->get("counter")->bytes), "100");
}

TEST_F(DirectoryStoreTest, AProcessThatDiesWithTheLockDoesNotKeepIt) {
  const auto store = open();
  ASSERT_TRUE(store->put("a", as_bytes("1")).ok());
  EXPECT_EQ(in_child([&] {
              const int lock = ::open((root() / "@store" / "lock").c_str(), O_RDWR);
              return ::flock(lock, LOCK_EX) == 0 ? 0 : 1;
            }),
            0);
  EXPECT_TRUE(store->put("a", as_bytes("2")).ok());
}

TEST_F(DirectoryStoreTest, AReadOnlyFolderCanBeReadAndRefusesWritesClearly) {
  ASSERT_TRUE(open()->put_if_absent("a/b", as_bytes("1")).ok());
  fs::permissions(folder_.path(), fs::perms(0755));
  for (const auto& entry : fs::recursive_directory_iterator(root())) {
    fs::permissions(entry.path(), fs::perms(entry.is_directory() ? 0555 : 0444));
  }
  fs::permissions(root(), fs::perms(0555));
  const int result = in_child([&] {
    // Permissions do not bind root: become nobody.
    if (::getuid() == 0 && (::setgroups(0, nullptr) != 0 || ::setgid(65534) != 0 || ::setuid(65534) != 0)) return 10;
    const auto store = open_directory_store(root().string(), false);
    if (!store.ok()) return 1;
    if (!(*store)->get("a/b").ok()) return 2;
    if (list_all(**store, "").value().size() != 1) return 3;
    for (const auto& status :
         {(*store)->put_if_absent("c", as_bytes("x")).status(), (*store)->put("a/b", as_bytes("x")).status(),
          (*store)->put_if_match("a/b", as_bytes("x"), (*store)->get("a/b")->etag).status(), (*store)->remove("a/b")}) {
      if (status.code() != StatusCode::kPermissionDenied) return 4;
      if (status.message().find(root().string()) == std::string::npos) return 5;
    }
    return 0;
  });
  for (const auto& entry : fs::recursive_directory_iterator(root())) fs::permissions(entry.path(), fs::perms(0755));
  EXPECT_EQ(result, 0);
}

TEST_F(DirectoryStoreTest, WithoutSpaceAWriteSaysSoAndLeavesNothing) {
  const int result = in_child([&] {
    const auto store = open();
    if (!store->put_if_absent("small", as_bytes("x")).ok()) return 1;
    std::signal(SIGXFSZ, SIG_IGN);
    const struct rlimit limit {
      4096, 4096
    };
    if (::setrlimit(RLIMIT_FSIZE, &limit) != 0) return 2;
    const auto status = store->put_if_absent("large", Bytes(100'000)).status();
    if (status.code() != StatusCode::kResourceExhausted) return 3;
    if (status.message().find("large") == std::string::npos) return 4;
    if (store->get("large").status().code() != StatusCode::kNotFound) return 5;
    return 0;
  });
  EXPECT_EQ(result, 0);
  EXPECT_EQ(partial_files(), 0u);
}

}  // namespace
}  // namespace flotilla
