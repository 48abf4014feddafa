#include "server_process.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

extern char** environ;

namespace flotilla {

ServerProcess::ServerProcess(std::vector<std::string> command) {
  int input[2], output[2];
  if (::pipe2(input, O_CLOEXEC) != 0 || ::pipe2(output, O_CLOEXEC) != 0) return;
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, input[0], 0);
  ::posix_spawn_file_actions_adddup2(&actions, output[1], 1);
  std::vector<char*> arguments;
  for (std::string& argument : command) arguments.push_back(argument.data());
  arguments.push_back(nullptr);
  if (::posix_spawn(&process_, arguments[0], &actions, nullptr, arguments.data(), environ) != 0) process_ = -1;
  ::posix_spawn_file_actions_destroy(&actions);
  ::close(input[0]);
  ::close(output[1]);
  input_ = input[1];
  char c = 0;
  while (process_ > 0 && ::read(output[0], &c, 1) == 1 && c != '\n') line_ += c;
  ::close(output[0]);
}

ServerProcess::~ServerProcess() {
  ::close(input_);
  if (process_ > 0) ::waitpid(process_, nullptr, 0);
}

}  // namespace flotilla
