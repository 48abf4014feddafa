#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace flotilla {

// What happens to one connection, or exchange.
struct Fault {
  enum Kind {
    kNone,
    kRefuse,      // closed at once
    kCutAnswer,   // after `bytes` of it
    kLoseAnswer,  // the server has answered, but nobody hears of it
    kTrickle,     // a byte of the answer each 10 ms
    kHang,        // no answer, ever
    kAnswer,      // `text` in place of the server's; what the client still sends is dropped
    kTunnel,      // of an HTTP proxy: CONNECT is agreed to with `text`
  };
  Kind kind = kNone;
  std::size_t bytes = 0;
  std::string text = {};
  std::function<void()> before = nullptr;  // called when the request's head is there
};

// Stands between client and server on this machine, and breaks connections: each takes the next fault, and none when
// there is no more. With `draw` each request of HTTP, on every connection, gets what it gives; it is called by many
// threads.
class FaultProxy {
 public:
  explicit FaultProxy(std::uint16_t server_port, std::function<Fault()> draw = nullptr);
  ~FaultProxy();
  FaultProxy(const FaultProxy&) = delete;
  FaultProxy& operator=(const FaultProxy&) = delete;

  std::uint16_t port() const { return port_; }
  void then(Fault fault);
  // The heads of the requests that came, one a connection.
  std::vector<std::string> heads() const;
  // Waits until so many bytes of answers went to clients.
  void wait_for_answer_bytes(std::size_t bytes) const;

 private:
  struct Connection {
    std::atomic<bool> done{false};
    std::jthread thread = {};
  };
  void accept_all();
  void serve(int client);
  Fault next_fault();
  bool read_head(int client, std::string& request);
  bool pass(int client, int server, const Fault& fault, std::string& request);

  const std::uint16_t server_port_;
  const std::function<Fault()> draw_;
  int listener_ = -1;
  std::uint16_t port_ = 0;
  mutable std::mutex mutex_;
  std::deque<Fault> faults_;
  std::vector<std::string> heads_;
  std::atomic<std::size_t> answer_bytes_{0};
  std::atomic<bool> ending_{false};
  std::list<Connection> connections_;
  std::jthread acceptor_;
};

}  // namespace flotilla
