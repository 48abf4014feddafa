#include "learn/control_socket.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <optional>
#include <thread>

#include <fmt/format.h>

namespace flotilla {
namespace {

using Milliseconds = std::chrono::milliseconds;
using SteadyTime = std::chrono::steady_clock::time_point;

constexpr std::size_t kLineMax = 4096;       // bytes of a command
constexpr std::size_t kAnswerMax = 1 << 20;  // and of an answer
constexpr Milliseconds kClientTime{1000};

class Descriptor {
 public:
  explicit Descriptor(int value) : value_(value) {}
  Descriptor(Descriptor&& other) noexcept : value_(std::exchange(other.value_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(value_, other.value_);
    return *this;
  }
  ~Descriptor() {
    if (value_ >= 0) ::close(value_);
  }
  int get() const { return value_; }

 private:
  int value_;
};

// sockaddr_un holds 107 bytes of path: name the file through its folder's descriptor, which fits whatever the folder.
struct Address {
  Descriptor folder;
  sockaddr_un socket{};
};

Result<Address> address_of(const std::filesystem::path& path) {
  const std::filesystem::path parent = path.has_parent_path() ? path.parent_path() : std::filesystem::path(".");
  Address address{Descriptor(::open(parent.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC)), {}};
  if (address.folder.get() < 0) return errno_status(errno, "open " + parent.string());
  const std::string name = fmt::format("/proc/self/fd/{}/{}", address.folder.get(), path.filename().string());
  if (name.size() >= sizeof(address.socket.sun_path)) return invalid_argument("the socket's name is too long");
  address.socket.sun_family = AF_UNIX;
  name.copy(address.socket.sun_path, name.size());
  return address;
}

Result<Descriptor> connect_to(const std::filesystem::path& path) {
  FLOTILLA_ASSIGN_OR_RETURN(const Address address, address_of(path));
  Descriptor socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (socket.get() < 0) return errno_status(errno, "socket");
  if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address.socket), sizeof(address.socket)) != 0) {
    return unavailable(fmt::format("nobody listens on {}", path.string()));
  }
  return socket;
}

// One line, without its end. Nothing when the peer left, time ran out or the line is too long.
std::optional<std::string> read_line(int socket, std::size_t longest, SteadyTime deadline) {
  std::string line;
  char byte_block[512];
  while (line.size() <= longest) {
    const auto left = std::chrono::duration_cast<Milliseconds>(deadline - std::chrono::steady_clock::now()).count();
    pollfd wait{socket, POLLIN, 0};
    if (left <= 0 || ::poll(&wait, 1, static_cast<int>(left)) <= 0) return std::nullopt;
    const ssize_t got = ::recv(socket, byte_block, sizeof(byte_block), MSG_DONTWAIT);
    if (got < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (got <= 0) return std::nullopt;
    line.append(byte_block, static_cast<std::size_t>(got));
    if (const std::size_t end = line.find('\n'); end != std::string::npos) return line.substr(0, end);
  }
  return std::nullopt;
}

bool write_line(int socket, std::string_view text, SteadyTime deadline) {
  std::string line(text);
  line += '\n';
  for (std::string_view rest = line; !rest.empty();) {
    const auto left = std::chrono::duration_cast<Milliseconds>(deadline - std::chrono::steady_clock::now()).count();
    pollfd wait{socket, POLLOUT, 0};
    if (left <= 0 || ::poll(&wait, 1, static_cast<int>(left)) <= 0) return false;
    const ssize_t sent = ::send(socket, rest.data(), rest.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (sent <= 0) return false;
    rest.remove_prefix(static_cast<std::size_t>(sent));
  }
  return true;
}

class Server final : public ControlSocket {
 public:
  Server(std::filesystem::path path, Descriptor socket, Descriptor wake, ControlHandler handler)
      : path_(std::move(path)),
        socket_(std::move(socket)),
        wake_(std::move(wake)),
        handler_(std::move(handler)),
        thread_([this](std::stop_token stop) { serve(stop); }) {}

  ~Server() override {
    thread_.request_stop();
    [[maybe_unused]] const int woken = ::eventfd_write(wake_.get(), 1);
    thread_.join();
    ::unlink(path_.c_str());
  }

 private:
  void serve(std::stop_token stop) {
    while (!stop.stop_requested()) {
      pollfd waits[] = {{socket_.get(), POLLIN, 0}, {wake_.get(), POLLIN, 0}};
      if (::poll(waits, 2, -1) <= 0 || !(waits[0].revents & POLLIN)) continue;
      const Descriptor client(::accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC));
      if (client.get() < 0) continue;
      const SteadyTime deadline = std::chrono::steady_clock::now() + kClientTime;
      if (const auto command = read_line(client.get(), kLineMax, deadline)) {
        write_line(client.get(), handler_(*command), deadline);
      }
    }
  }

  const std::filesystem::path path_;
  const Descriptor socket_, wake_;
  const ControlHandler handler_;
  std::jthread thread_;
};

}  // namespace

Result<std::unique_ptr<ControlSocket>> ControlSocket::listen(const std::filesystem::path& path,
                                                             ControlHandler handler) {
  if (connect_to(path).ok()) return already_exists(fmt::format("another process listens on {}", path.string()));
  ::unlink(path.c_str());
  FLOTILLA_ASSIGN_OR_RETURN(const Address address, address_of(path));
  Descriptor socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  Descriptor wake(::eventfd(0, EFD_CLOEXEC));
  if (socket.get() < 0 || wake.get() < 0) return errno_status(errno, "socket");
  ::fchmod(socket.get(), 0600);  // bind makes the file with this mode
  if (::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address.socket), sizeof(address.socket)) != 0 ||
      ::chmod(path.c_str(), 0600) != 0 || ::listen(socket.get(), 8) != 0) {
    return errno_status(errno, "listen on " + path.string());
  }
  return std::unique_ptr<ControlSocket>(
      std::make_unique<Server>(path, std::move(socket), std::move(wake), std::move(handler)));
}

Result<std::string> ask_control_socket(const std::filesystem::path& path, std::string_view command,
                                       std::chrono::milliseconds timeout) {
  FLOTILLA_ASSIGN_OR_RETURN(const Descriptor socket, connect_to(path));
  const SteadyTime deadline = std::chrono::steady_clock::now() + timeout;
  if (write_line(socket.get(), command, deadline)) {
    if (auto answer = read_line(socket.get(), kAnswerMax, deadline)) return *std::move(answer);
  }
  if (std::chrono::steady_clock::now() < deadline) return unavailable("the other side closed without an answer");
  return deadline_exceeded(fmt::format("no answer on {} within {} ms", path.string(), timeout.count()));
}

std::string answer_learner_command(LearnerControl& control, std::string_view command) {
  if (command == "status") return control.status().dump();
  if (command == "stop") {
    control.ask(LearnerControl::Request::kFinish);
  } else if (command == "leave") {
    control.ask(LearnerControl::Request::kLeave);
  } else if (command == "pause" || command == "resume") {
    control.pause(command == "pause");
  } else {
    return nlohmann::json{{"error", "expected status, stop, leave, pause or resume"}}.dump();
  }
  return nlohmann::json{{"ok", true}}.dump();
}

}  // namespace flotilla
