#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "base/status.h"
#include "hub/hub_service.h"
#include "hub/tls_files.h"

namespace flotilla {

struct HubServerOptions {
  std::string address = "127.0.0.1";  // an IP address of this machine
  std::uint16_t port = 9000;          // 0: any free one
  std::optional<TlsFiles> tls = {};
  bool plain_text = false;  // other machines are served without TLS too
  std::string metrics_address = "127.0.0.1";
  std::uint16_t metrics_port = 9001;  // 0: any free one
  int threads = 8;                    // that wait for the disk and do all input and output
  std::size_t connections_max = 1024;
  std::size_t connections_per_peer_max = 128;
  std::chrono::nanoseconds idle_timeout = std::chrono::seconds(75);    // from an answer's end to a next byte
  std::chrono::nanoseconds head_timeout = std::chrono::seconds(15);    // for a whole head, and for TLS to begin
  std::chrono::nanoseconds client_timeout = std::chrono::seconds(30);  // for a next piece of a body or an answer
  // A body that takes longer than both together is given up.
  std::chrono::nanoseconds body_base_time = std::chrono::seconds(60);
  std::uint64_t body_bytes_per_s_min = 4096;
};

// The S3 API of a hub over HTTP/1.1 (docs/hub.md), and on a port of its own, in plain text, GET /health and /metrics.
class HubServer {
 public:
  // Listens and serves. invalid_argument for an address that is none, or that other machines reach without TLS, and for
  // certificate files that do not work; unavailable when a port is in use. Borrows service and metrics.
  static Result<std::unique_ptr<HubServer>> start(const HubServerOptions& options, HubService& service,
                                                  HubMetrics& metrics);
  // Closes all connections at once.
  virtual ~HubServer() = default;

  virtual std::uint16_t port() const = 0;
  virtual std::uint16_t metrics_port() const = 0;
  // Takes no more connections and requests, and returns when every client has its answer, or `grace` is over.
  virtual void stop(std::chrono::nanoseconds grace) = 0;
};

}  // namespace flotilla
