#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace flotilla {

// A server in a process of its own, which ends with its standard input.
class ServerProcess {
 public:
  explicit ServerProcess(std::vector<std::string> command);
  ~ServerProcess();
  ServerProcess(const ServerProcess&) = delete;
  ServerProcess& operator=(const ServerProcess&) = delete;
  // The first line that it printed; empty when it did not start.
  const std::string& line() const { return line_; }

 private:
  pid_t process_ = -1;
  int input_ = -1;
  std::string line_;
};

}  // namespace flotilla
