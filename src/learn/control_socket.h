#pragma once

#include <chrono>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "base/status.h"
#include "learn/learner_control.h"

namespace flotilla {

// Answers one command. The answer is one line.
using ControlHandler = std::function<std::string(std::string_view command)>;

// A Unix socket through which programs of the same user on this machine talk to a running process: a client sends one
// line and gets one line. A thread of its own serves one client after the other, each for at most a second. The file
// has mode 0600 and goes with the object.
class ControlSocket {
 public:
  // Replaces a socket file that nobody listens on; already_exists when somebody does.
  static Result<std::unique_ptr<ControlSocket>> listen(const std::filesystem::path& path, ControlHandler handler);
  virtual ~ControlSocket() = default;
};

// Sends a command and returns the answer. unavailable when nobody listens there; deadline_exceeded after `timeout`.
Result<std::string> ask_control_socket(const std::filesystem::path& path, std::string_view command,
                                       std::chrono::milliseconds timeout);

// The learner's commands: "status" answers with JSON; "stop" (end the run), "leave" (checkpoint and go), "pause" and
// "resume" answer {"ok":true} and take effect at the next micro-batch; anything else {"error":"..."}.
std::string answer_learner_command(LearnerControl& control, std::string_view command);

}  // namespace flotilla
