#include "base/files.h"

#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <thread>

#include <gtest/gtest.h>

namespace flotilla {
namespace {

namespace fs = std::filesystem;

class FilesTest : public testing::Test {
 protected:
  std::size_t entries() const {
    return static_cast<std::size_t>(std::distance(fs::directory_iterator(folder()), fs::directory_iterator()));
  }
  const fs::path& folder() const { return temporary_.path(); }
  fs::path file() const { return folder() / "file"; }

 private:
  TemporaryFolder temporary_;
};

TEST_F(FilesTest, what_is_written_is_read) {
  ASSERT_TRUE(write_file_atomically(file(), "hello").ok());
  EXPECT_EQ(read_text_file(file()).value(), "hello");
  EXPECT_EQ(read_file(file()).value(), to_bytes("hello"));
  ASSERT_TRUE(write_file_atomically(file(), "").ok());
  EXPECT_EQ(read_text_file(file()).value(), "");
  EXPECT_EQ(entries(), 1u);
}

TEST_F(FilesTest, a_file_of_the_system_that_says_it_is_empty_is_read_to_its_end) {
  const auto text = read_text_file("/proc/self/status");
  ASSERT_TRUE(text.ok()) << text.status().to_string();
  EXPECT_NE(text->find("VmRSS"), std::string::npos);
}

TEST_F(FilesTest, missing_parent_folders_are_made) {
  ASSERT_TRUE(write_file_atomically(folder() / "a" / "b" / "file", "x").ok());
  EXPECT_EQ(read_text_file(folder() / "a" / "b" / "file").value(), "x");
}

TEST_F(FilesTest, errors_name_the_path) {
  const Status missing = read_file(folder() / "none").status();
  EXPECT_EQ(missing.code(), StatusCode::kNotFound);
  EXPECT_NE(missing.message().find((folder() / "none").string()), std::string::npos);
  EXPECT_EQ(read_file(folder()).status().code(), StatusCode::kInvalidArgument);
  ASSERT_EQ(::mkfifo((folder() / "pipe").c_str(), 0600), 0);
  // Opened for both, so that opening the other end does not wait.
  std::fstream other_end(folder() / "pipe", std::ios::in | std::ios::out);
  EXPECT_EQ(read_file(folder() / "pipe").status().code(), StatusCode::kInvalidArgument);
}

TEST_F(FilesTest, a_write_that_cannot_be_leaves_nothing_behind) {
  ASSERT_TRUE(write_file_atomically(file(), "hello").ok());
  EXPECT_FALSE(write_file_atomically(file() / "below a file", "x").ok());
  fs::create_directory(folder() / "taken");
  ASSERT_TRUE(write_file_atomically(folder() / "taken" / "inside", "x").ok());
  EXPECT_FALSE(write_file_atomically(folder() / "taken", "x").ok());
  EXPECT_EQ(entries(), 2u);
}

TEST_F(FilesTest, a_full_disk_keeps_the_old_file) {
  ASSERT_TRUE(write_file_atomically(file(), "old").ok());
  // The limit on a file's size stands for a full disk.
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    std::signal(SIGXFSZ, SIG_IGN);
    const rlimit full{1000, 1000};
    if (::setrlimit(RLIMIT_FSIZE, &full) != 0) ::_exit(1);
    ::_exit(write_file_atomically(file(), std::string(5000, 'x')).ok() ? 2 : 0);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_EQ(status, 0);
  EXPECT_EQ(read_text_file(file()).value(), "old");
  EXPECT_EQ(entries(), 1u);
}

TEST_F(FilesTest, a_reader_sees_the_old_or_the_new_bytes_whenever_the_writer_is_killed) {
  ASSERT_TRUE(write_file_atomically(file(), std::string(100000, '0')).ok());
  for (int round = 0; round < 20; ++round) {
    int ready[2];
    ASSERT_EQ(::pipe(ready), 0);
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      for (int i = 0;; ++i) {
        if (!write_file_atomically(file(), std::string(100000, static_cast<char>('0' + i % 10))).ok()) ::_exit(1);
        if (::write(ready[1], "w", 1) != 1) ::_exit(2);
      }
    }
    ::close(ready[1]);
    char byte;
    for (int i = 0; i <= round % 3; ++i) ASSERT_EQ(::read(ready[0], &byte, 1), 1);
    const auto during = read_text_file(file());
    ASSERT_TRUE(during.ok());
    EXPECT_EQ(*during, std::string(100000, during->at(0)));
    ASSERT_EQ(::kill(child, SIGKILL), 0);
    ASSERT_EQ(::waitpid(child, nullptr, 0), child);
    ::close(ready[0]);
    const auto after = read_text_file(file());
    ASSERT_TRUE(after.ok());
    EXPECT_EQ(*after, std::string(100000, after->at(0)));
  }
}

TEST_F(FilesTest, a_file_that_changes_while_it_is_read_is_said_to) {
  ASSERT_TRUE(write_file_atomically(file(), std::string(1 << 20, 'a')).ok());
  std::jthread writer([&](const std::stop_token& stop) {
    std::fstream stream(file(), std::ios::in | std::ios::out | std::ios::binary);
    while (!stop.stop_requested()) stream.seekp(0).write("b", 1).flush();
  });
  Status status;
  while (status.ok()) status = read_settled_file(file()).status();
  EXPECT_EQ(status.code(), StatusCode::kUnavailable) << status.to_string();
  EXPECT_NE(status.message().find("changed while it was read"), std::string::npos);
}

TEST(TemporaryFolder, is_deleted_with_its_contents) {
  fs::path path;
  {
    const TemporaryFolder folder;
    path = folder.path();
    ASSERT_TRUE(write_file_atomically(path / "a" / "b", "x").ok());
    EXPECT_TRUE(fs::is_directory(path));
  }
  EXPECT_FALSE(fs::exists(path));
}

}  // namespace
}  // namespace flotilla
