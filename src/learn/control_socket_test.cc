#include "learn/control_socket.h"

#include <sys/stat.h>

#include <fstream>
#include <thread>

#include <gtest/gtest.h>

#include "base/files.h"

namespace flotilla {
namespace {

using std::chrono::milliseconds;
constexpr milliseconds kTimeout{5000};

TEST(ControlSocket, AnswersEachCommandWithOneLine) {
  const TemporaryFolder folder;
  const auto path = folder.path() / "control";
  const auto socket =
      ControlSocket::listen(path, [](std::string_view command) { return "got " + std::string(command); });
  ASSERT_TRUE(socket.ok()) << socket.status().to_string();
  EXPECT_EQ(ask_control_socket(path, "one", kTimeout).value(), "got one");
  EXPECT_EQ(ask_control_socket(path, "two", kTimeout).value(), "got two");
  struct stat info {};
  ASSERT_EQ(::stat(path.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
}

TEST(ControlSocket, WorksInAFolderWhoseNameIsLongerThanASocketAddress) {
  const TemporaryFolder folder;
  const auto deep = folder.path() / std::string(200, 'x');
  std::filesystem::create_directories(deep);
  const auto socket = ControlSocket::listen(deep / "control", [](std::string_view) { return std::string("yes"); });
  ASSERT_TRUE(socket.ok()) << socket.status().to_string();
  EXPECT_EQ(ask_control_socket(deep / "control", "?", kTimeout).value(), "yes");
}

TEST(ControlSocket, ReplacesADeadSocketAndRefusesALiveOne) {
  const TemporaryFolder folder;
  const auto path = folder.path() / "control";
  std::ofstream(path) << "left behind";
  {
    const auto first = ControlSocket::listen(path, [](std::string_view) { return std::string(); });
    ASSERT_TRUE(first.ok());
    const auto second = ControlSocket::listen(path, [](std::string_view) { return std::string(); });
    EXPECT_EQ(second.status().code(), StatusCode::kAlreadyExists);
  }
  EXPECT_FALSE(std::filesystem::exists(path));
  EXPECT_EQ(ask_control_socket(path, "status", kTimeout).status().code(), StatusCode::kUnavailable);
  EXPECT_FALSE(ask_control_socket(folder.path() / "nowhere" / "control", "status", kTimeout).ok());
}

TEST(ControlSocket, IgnoresAClientThatSendsTooMuch) {
  const TemporaryFolder folder;
  const auto path = folder.path() / "control";
  const auto socket = ControlSocket::listen(path, [](std::string_view) { return std::string("answered"); });
  ASSERT_TRUE(socket.ok());
  EXPECT_FALSE(ask_control_socket(path, std::string(100000, 'x'), kTimeout).ok());
  EXPECT_EQ(ask_control_socket(path, "next", kTimeout).value(), "answered");
}

TEST(LearnerControl, CommandsBecomeRequests) {
  LearnerControl control;
  control.set_status({{"step", 3}});
  EXPECT_EQ(nlohmann::json::parse(answer_learner_command(control, "status"))["step"], 3);
  answer_learner_command(control, "pause");
  EXPECT_TRUE(control.paused());
  answer_learner_command(control, "resume");
  EXPECT_FALSE(control.paused());
  answer_learner_command(control, "stop");
  EXPECT_EQ(control.request(), LearnerControl::Request::kFinish);
  answer_learner_command(control, "leave");
  answer_learner_command(control, "stop");
  EXPECT_EQ(control.request(), LearnerControl::Request::kLeave);
  EXPECT_TRUE(nlohmann::json::parse(answer_learner_command(control, "dance")).contains("error"));
}

TEST(LearnerControl, AWaitEndsWhenSomethingIsAsked) {
  LearnerControl control;
  std::jthread asker([&] { control.ask(LearnerControl::Request::kFinish); });
  while (control.request() == LearnerControl::Request::kNone) control.wait(std::chrono::seconds(10));
  EXPECT_EQ(control.request(), LearnerControl::Request::kFinish);
}

}  // namespace
}  // namespace flotilla
