#pragma once

#include <sys/types.h>

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"

namespace flotilla {

// How a process ended: its exit code, or the signal that killed it.
struct ExitState {
  int code = 0;
  int signal = 0;
  bool ok() const { return code == 0 && signal == 0; }
  std::string text() const;  // "exit code 1", "signal 9"
};

// A process started by this one, with its output in a log file. Ends with its parent (it gets SIGTERM when the parent
// dies). The destructor ends it and waits. One thread.
class ChildProcess {
 public:
  static Result<ChildProcess> start(const std::vector<std::string>& command, const std::filesystem::path& log);
  ChildProcess(ChildProcess&& other) noexcept;
  ChildProcess& operator=(ChildProcess&& other) noexcept;
  ~ChildProcess();

  pid_t pid() const { return pid_; }
  // nullopt while it runs. Never blocks.
  std::optional<ExitState> poll();
  void terminate();
  ExitState wait();

 private:
  explicit ChildProcess(pid_t pid) : pid_(pid) {}
  pid_t pid_ = -1;
  std::optional<ExitState> ended_;
};

// The folder of the running program.
std::filesystem::path program_folder();

}  // namespace flotilla
