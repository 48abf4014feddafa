#include "cli/child_process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include <fmt/format.h>

namespace flotilla {

std::string ExitState::text() const {
  return signal != 0 ? fmt::format("signal {}", signal) : fmt::format("exit code {}", code);
}

Result<ChildProcess> ChildProcess::start(const std::vector<std::string>& command, const std::filesystem::path& log) {
  std::vector<char*> arguments;
  for (const std::string& part : command) arguments.push_back(const_cast<char*>(part.c_str()));
  arguments.push_back(nullptr);

  const int out = ::open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (out < 0) return errno_status(errno, "open " + log.string());
  const pid_t parent = ::getpid();
  const pid_t pid = ::fork();
  if (pid < 0) {
    ::close(out);
    return errno_status(errno, "fork for " + command.front());
  }
  if (pid == 0) {
    // Only async-signal-safe calls from here on. The check of the parent closes the race with its death before prctl.
    ::prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (::getppid() != parent) ::_exit(127);
    ::setpgid(0, 0);
    sigset_t none;  // the parent may have blocked signals for itself
    sigemptyset(&none);
    ::sigprocmask(SIG_SETMASK, &none, nullptr);
    const int null = ::open("/dev/null", O_RDONLY);
    ::dup2(null, 0);
    ::dup2(out, 1);
    ::dup2(out, 2);
    ::execv(arguments[0], arguments.data());
    ::_exit(127);
  }
  ::close(out);
  return ChildProcess(pid);
}

ChildProcess::ChildProcess(ChildProcess&& other) noexcept : pid_(std::exchange(other.pid_, -1)), ended_(other.ended_) {}

ChildProcess& ChildProcess::operator=(ChildProcess&& other) noexcept {
  std::swap(pid_, other.pid_);
  std::swap(ended_, other.ended_);
  return *this;
}

ChildProcess::~ChildProcess() {
  if (pid_ < 0 || poll()) return;
  terminate();
  wait();
}

std::optional<ExitState> ChildProcess::poll() {
  if (ended_ || pid_ < 0) return ended_;
  int state = 0;
  if (::waitpid(pid_, &state, WNOHANG) == pid_) {
    ended_ = WIFSIGNALED(state) ? ExitState{0, WTERMSIG(state)} : ExitState{WEXITSTATUS(state), 0};
  }
  return ended_;
}

void ChildProcess::terminate() {
  if (pid_ > 0 && !ended_) ::kill(pid_, SIGTERM);
}

ExitState ChildProcess::wait() {
  while (!ended_) {
    int state = 0;
    const pid_t done = ::waitpid(pid_, &state, 0);
    if (done < 0 && errno == EINTR) continue;
    ended_ = done < 0 || WIFSIGNALED(state) ? ExitState{0, done < 0 ? SIGKILL : WTERMSIG(state)}
                                            : ExitState{WEXITSTATUS(state), 0};
  }
  return *ended_;
}

std::filesystem::path program_folder() {
  std::error_code error;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error);
  return error ? std::filesystem::path(".") : self.parent_path();
}

}  // namespace flotilla
