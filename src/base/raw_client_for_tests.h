#pragma once

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

namespace flotilla {

// A client that sends bytes as they are. With small buffers, what it does not take stays with the server.
class RawClient {
 public:
  explicit RawClient(std::uint16_t port, bool small_buffers = false) : fd_(::socket(AF_INET, SOCK_STREAM, 0)) {
    if (small_buffers) {
      const int buffer_bytes = 32 << 10, segment_bytes = 1400;
      EXPECT_EQ(::setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &buffer_bytes, sizeof(int)), 0);
      EXPECT_EQ(::setsockopt(fd_, IPPROTO_TCP, TCP_MAXSEG, &segment_bytes, sizeof(int)), 0);
    }
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(::connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  }
  ~RawClient() { ::close(fd_); }
  RawClient(const RawClient&) = delete;
  RawClient& operator=(const RawClient&) = delete;

  RawClient& send(std::string_view text) {
    while (!text.empty()) {
      const auto sent = ::send(fd_, text.data(), text.size(), MSG_NOSIGNAL);
      if (sent <= 0) break;
      text.remove_prefix(static_cast<std::size_t>(sent));
    }
    return *this;
  }
  // What came, up to and with `end`, or all until the server closes.
  std::string read(std::string_view end = {}) {
    for (;;) {
      if (const auto at = end.empty() ? std::string::npos : read_.find(end); at != std::string::npos) {
        const std::string text = read_.substr(0, at + end.size());
        read_.erase(0, at + end.size());
        return text;
      }
      if (take(4096) == 0) return std::exchange(read_, {});
    }
  }
  // Takes so many bytes at most, once there are any, and says how many; 0 when the server has closed.
  std::size_t take(std::size_t bytes) {
    std::string piece(bytes, 0);
    const auto count = ::recv(fd_, piece.data(), piece.size(), 0);
    if (count <= 0) return 0;
    read_.append(piece, 0, static_cast<std::size_t>(count));
    return static_cast<std::size_t>(count);
  }

 private:
  const int fd_;
  std::string read_;
};

}  // namespace flotilla
