#include "cli/child_process.h"

#include <gtest/gtest.h>
#include <signal.h>

#include "base/files.h"

namespace flotilla {
namespace {

TEST(ChildProcess, ReportsItsExitCodeAndKeepsItsOutput) {
  const TemporaryFolder folder;
  auto child = ChildProcess::start({"/bin/sh", "-c", "echo out; echo err >&2; exit 3"}, folder.path() / "log");
  ASSERT_TRUE(child.ok());
  const ExitState end = child->wait();
  EXPECT_EQ(end.code, 3);
  EXPECT_EQ(end.text(), "exit code 3");
  EXPECT_EQ(*read_text_file(folder.path() / "log"), "out\nerr\n");
}

TEST(ChildProcess, ReportsTheSignalThatKilledIt) {
  const TemporaryFolder folder;
  auto child = ChildProcess::start({"/bin/sleep", "60"}, folder.path() / "log");
  ASSERT_TRUE(child.ok());
  EXPECT_FALSE(child->poll().has_value());
  ::kill(child->pid(), SIGKILL);
  EXPECT_EQ(child->wait().text(), "signal 9");
}

TEST(ChildProcess, EndsWithItsObject) {
  const TemporaryFolder folder;
  pid_t pid = 0;
  {
    auto child = ChildProcess::start({"/bin/sleep", "60"}, folder.path() / "log");
    ASSERT_TRUE(child.ok());
    pid = child->pid();
  }
  EXPECT_NE(::kill(pid, 0), 0);
}

TEST(ChildProcess, AProgramThatIsMissingEndsWithCode127) {
  const TemporaryFolder folder;
  auto child = ChildProcess::start({"/no/such/program"}, folder.path() / "log");
  ASSERT_TRUE(child.ok());
  EXPECT_EQ(child->wait().code, 127);
}

}  // namespace
}  // namespace flotilla
