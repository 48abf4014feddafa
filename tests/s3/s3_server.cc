#include "s3_server.h"

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>

#include <fmt/format.h>

#include "base/user_folders.h"
#include "server_process.h"

namespace flotilla {
namespace {

constexpr const char* kScript = "tests/oracles/s3_server.py";

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
    static const ServerProcess process({interpreter, kScript});
    const auto said = nlohmann::json::parse(process.line(), nullptr, false);
    if (!said.is_object()) return nullptr;
    return std::make_unique<const S3Server>(S3Server{said["port"], said["tls_port"], said["pin"], said["ca_bundle"],
                                                     said["access_key"], said["secret_key"], said["bucket"],
                                                     said["unconditional_bucket"]});
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
