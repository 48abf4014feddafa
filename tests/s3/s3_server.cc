#include "s3_server.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>

#include <fmt/format.h>

#include "base/user_folders.h"

extern char** environ;

namespace flotilla {
namespace {

constexpr const char* kScript = "tests/oracles/s3_server.py";

// The server's process, which ends with its standard input.
class ServerProcess {
 public:
  explicit ServerProcess(const std::string& python) {
    int input[2], output[2];
    if (::pipe2(input, O_CLOEXEC) != 0 || ::pipe2(output, O_CLOEXEC) != 0) return;
    posix_spawn_file_actions_t actions;
    ::posix_spawn_file_actions_init(&actions);
    ::posix_spawn_file_actions_adddup2(&actions, input[0], 0);
    ::posix_spawn_file_actions_adddup2(&actions, output[1], 1);
    std::string script = kScript, program = python;
    char* arguments[] = {program.data(), script.data(), nullptr};
    if (::posix_spawn(&process_, python.c_str(), &actions, nullptr, arguments, environ) != 0) process_ = -1;
    ::posix_spawn_file_actions_destroy(&actions);
    ::close(input[0]);
    ::close(output[1]);
    input_ = input[1];
    char c = 0;
    while (process_ > 0 && ::read(output[0], &c, 1) == 1 && c != '\n') line_ += c;
    ::close(output[0]);
  }
  ~ServerProcess() {
    ::close(input_);
    if (process_ > 0) ::waitpid(process_, nullptr, 0);
  }
  const std::string& line() const { return line_; }

 private:
  pid_t process_ = -1;
  int input_ = -1;
  std::string line_;
};

}  // namespace

std::string S3Server::python() {
  const char* venv = std::getenv("FLOTILLA_VENV");
  const std::filesystem::path root = venv != nullptr ? std::filesystem::path(venv) : user_cache_folder() / "venv";
  return std::filesystem::exists(root / "bin/python") ? (root / "bin/python").string() : "";
}

const S3Server* S3Server::shared() {
  static const std::unique_ptr<const S3Server> server = []() -> std::unique_ptr<const S3Server> {
    const std::string interpreter = python();
    if (interpreter.empty()) return nullptr;
    static const ServerProcess process(interpreter);
    const auto said = nlohmann::json::parse(process.line(), nullptr, false);
    if (!said.is_object()) return nullptr;
    return std::make_unique<const S3Server>(S3Server{said["port"], said["tls_port"], said["pin"], said["ca_bundle"],
                                                     said["access_key"], said["secret_key"], said["bucket"]});
  }();
  return server.get();
}

std::string S3Server::fresh_prefix() const {
  static std::atomic<int> count{0};
  return fmt::format("test/{}", ++count);
}

std::string S3Server::address(const std::string& prefix, std::uint16_t at_port) const {
  return fmt::format("s3://{}/{}?endpoint=http://127.0.0.1:{}", bucket, prefix, at_port);
}

S3Options S3Server::options(std::map<std::string, std::string> others) const {
  others.emplace("AWS_ACCESS_KEY_ID", access_key);
  others.emplace("AWS_SECRET_ACCESS_KEY", secret_key);
  others.emplace("HOME", "/nonexistent");
  S3Options options;
  options.environment = [others](const char* name) -> std::optional<std::string> {
    const auto found = others.find(name);
    return found == others.end() ? std::nullopt : std::optional(found->second);
  };
  options.retry.first = std::chrono::milliseconds(4);
  options.retry.last = std::chrono::milliseconds(10);
  return options;
}

}  // namespace flotilla
