#include "fault_proxy.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <chrono>

#include "store/file_descriptor.h"

namespace flotilla {
namespace {

sockaddr_in local_address(std::uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

bool send_all(int socket, std::string_view text) {
  while (!text.empty()) {
    const auto sent = ::send(socket, text.data(), text.size(), MSG_NOSIGNAL);
    if (sent <= 0) return false;
    text.remove_prefix(static_cast<std::size_t>(sent));
  }
  return true;
}

FileDescriptor connect_to(std::uint16_t port) {
  FileDescriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const sockaddr_in address = local_address(port);
  if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
    return FileDescriptor();
  return socket;
}

// So that no wait outlives the test.
bool readable(int socket, const std::atomic<bool>& ending) {
  while (!ending) {
    pollfd one{socket, POLLIN, 0};
    if (::poll(&one, 1, 50) > 0) return true;
  }
  return false;
}

}  // namespace

FaultProxy::FaultProxy(std::uint16_t server_port, std::function<Fault()> draw)
    : server_port_(server_port), draw_(std::move(draw)), listener_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  sockaddr_in address = local_address(0);
  socklen_t size = sizeof address;
  if (::bind(listener_, reinterpret_cast<const sockaddr*>(&address), size) != 0 || ::listen(listener_, 64) != 0)
    std::abort();
  ::getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size);
  port_ = ntohs(address.sin_port);
  acceptor_ = std::jthread([this] { accept_all(); });
}

FaultProxy::~FaultProxy() {
  ending_ = true;
  acceptor_ = {};
  connections_.clear();
  ::close(listener_);
}

void FaultProxy::then(Fault fault) {
  const std::lock_guard lock(mutex_);
  faults_.push_back(std::move(fault));
}

std::vector<std::string> FaultProxy::heads() const {
  const std::lock_guard lock(mutex_);
  return heads_;
}

void FaultProxy::wait_for_answer_bytes(std::size_t bytes) const {
  for (std::size_t seen = answer_bytes_; seen < bytes; seen = answer_bytes_) answer_bytes_.wait(seen);
}

void FaultProxy::accept_all() {
  while (readable(listener_, ending_)) {
    const int client = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    if (client < 0) continue;
    connections_.remove_if([](const Connection& connection) { return connection.done.load(); });
    Connection& connection = connections_.emplace_back();
    connection.thread = std::jthread([this, client, &done = connection.done] {
      serve(client);
      done = true;
    });
  }
}

Fault FaultProxy::next_fault() {
  if (draw_) return draw_();
  const std::lock_guard lock(mutex_);
  if (faults_.empty()) return {};
  Fault fault = std::move(faults_.front());
  faults_.pop_front();
  return fault;
}

bool FaultProxy::read_head(int client, std::string& request) {
  std::array<char, 65536> buffer{};
  while (request.find("\r\n\r\n") == request.npos) {
    if (!readable(client, ending_)) return false;
    const auto got = ::recv(client, buffer.data(), buffer.size(), 0);
    if (got <= 0) return false;
    request.append(buffer.data(), static_cast<std::size_t>(got));
  }
  if (draw_) return true;
  const std::lock_guard lock(mutex_);
  heads_.push_back(request.substr(0, request.find("\r\n\r\n") + 2));
  return true;
}

void FaultProxy::serve(int accepted) {
  const FileDescriptor client(accepted);
  FileDescriptor server;
  std::string request;
  Fault fault;
  do {
    fault = next_fault();
    if (!read_head(client.get(), request)) return;
    if (fault.before) fault.before();
    if (fault.kind == Fault::kRefuse) return;
    if (fault.kind == Fault::kAnswer) {
      send_all(client.get(), fault.text);
      ::shutdown(client.get(), SHUT_WR);
      std::array<char, 65536> dropped{};
      while (readable(client.get(), ending_) && ::recv(client.get(), dropped.data(), dropped.size(), 0) > 0) continue;
      return;
    }
    if (!server.valid()) server = connect_to(server_port_);
    if (!server.valid()) return;
    const bool tunnel = fault.kind == Fault::kTunnel;
    if (!send_all(tunnel ? client.get() : server.get(), tunnel ? fault.text : request)) return;
  } while (pass(client.get(), server.get(), fault, request));
}

// True when another exchange begins, with what the client has sent of it.
bool FaultProxy::pass(int client, int server, const Fault& fault, std::string& request) {
  std::array<char, 65536> buffer{};
  std::size_t passed = 0;
  while (!ending_) {
    std::array<pollfd, 2> both{{{client, POLLIN, 0}, {server, POLLIN, 0}}};
    if (::poll(both.data(), both.size(), 50) <= 0) continue;
    if (both[0].revents != 0) {
      const auto got = ::recv(client, buffer.data(), buffer.size(), 0);
      if (got <= 0) return false;
      const std::string_view sent(buffer.data(), static_cast<std::size_t>(got));
      if (draw_ && passed > 0) {
        request = sent;
        return true;
      }
      if (!send_all(server, sent)) return false;
    }
    if (both[1].revents != 0) {
      const auto got = ::recv(server, buffer.data(), buffer.size(), 0);
      if (fault.kind == Fault::kHang) {
        while (readable(client, ending_) && ::recv(client, buffer.data(), buffer.size(), 0) > 0) continue;
        return false;
      }
      if (got <= 0) return false;
      std::string_view answer(buffer.data(), static_cast<std::size_t>(got));
      if (fault.kind == Fault::kLoseAnswer) return false;
      if (fault.kind == Fault::kTrickle) {
        for (const char c : answer) {
          if (ending_ || !send_all(client, {&c, 1})) return false;
          std::this_thread::sleep_for(std::chrono::milliseconds(10));
        }
        passed += answer.size();
        continue;
      }
      if (fault.kind == Fault::kCutAnswer) answer = answer.substr(0, fault.bytes - passed);
      if (!send_all(client, answer)) return false;
      passed += answer.size();
      answer_bytes_ += answer.size();
      answer_bytes_.notify_all();
      if (fault.kind == Fault::kCutAnswer && passed >= fault.bytes) return false;
    }
  }
  return false;
}

}  // namespace flotilla
