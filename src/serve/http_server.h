#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "base/status.h"
#include "serve/api_request.h"
#include "serve/generation_service.h"
#include "serve/serve_metrics.h"

namespace flotilla {

struct HttpOptions {
  std::string address = "127.0.0.1";  // an IP address of this machine
  std::uint16_t port = 8080;          // 0: any free one
  // What clients have to send as "Authorization: Bearer TOKEN". Empty: nothing, which only a loopback address may have.
  std::string token = {};
  std::size_t body_bytes_max = 8 << 20;
  std::size_t connections_max = 256;  // more are told to come again, or closed at once where those are many too
  std::chrono::nanoseconds request_timeout = std::chrono::minutes(10);  // from a request's arrival to its answer's end
  // For a client to send the next bytes of a body, or to take the next ones of an answer.
  std::chrono::nanoseconds client_timeout = std::chrono::seconds(30);
  std::chrono::nanoseconds idle_timeout = std::chrono::seconds(75);  // from an answer's end to a whole next head
};

// The OpenAI API over HTTP/1.1 (docs/serve.md), plain text. One thread does all input and output; answers come from the
// service. A client that closes its connection ends its request.
class HttpServer {
 public:
  // Listens and serves. invalid_argument for an address that is none, or that other machines reach and that has no
  // token, and for a model's name that is not UTF-8; unavailable when the address is in use. Borrows model, service and
  // metrics.
  static Result<std::unique_ptr<HttpServer>> start(const HttpOptions& options, const ServedModel& model,
                                                   GenerationService& service, ServeMetrics& metrics);
  // Closes all connections at once.
  virtual ~HttpServer() = default;

  virtual std::uint16_t port() const = 0;
  // Takes no more connections, and lets the service finish what it has, for `grace` at most. Returns when every client
  // has its answer or is gone.
  virtual void stop(std::chrono::nanoseconds grace) = 0;
};

}  // namespace flotilla
