#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "store/net_stream.h"
#include "store/sigv4.h"
#include "store/url.h"

namespace flotilla {

struct HttpRequest {
  std::string method;
  std::string target;   // encoded path and query
  NamedValues headers;  // "host" and what belongs to the body included; the length is added
  ByteSpan body;
  std::chrono::milliseconds answer_within{0};  // how long a silence before the answer may be, if longer than `window`
};

struct HttpAnswer {
  int status = 0;
  NamedValues headers;                                   // names in lower case
  std::string_view header(std::string_view name) const;  // empty when there is none
};

// Gets the body in pieces as they come; an error ends the exchange and is its result.
using BodySink = std::function<Status(const HttpAnswer& head, ByteSpan piece)>;

struct HttpTimes {
  std::chrono::milliseconds connect{10'000};  // name, address, proxy and TLS
  // Fewer than `window_bytes` in a `window` end an exchange: a peer that is silent, or trickles.
  std::chrono::milliseconds window{30'000};
  std::size_t window_bytes = 30 << 10;
  std::chrono::milliseconds idle{15'000};  // a connection that is kept is not used again after that
};

// HTTP/1.1 with connections that are kept. Thread safe. Retries nothing.
class HttpClient {
 public:
  // `environment` names proxies, as in proxy_for().
  HttpClient(TlsTrust trust, Environment environment, HttpTimes times = {});
  ~HttpClient();

  // The answer, whatever its status, once its body has gone to `sink`. unavailable, deadline_exceeded and cancelled as
  // NetStream has them, unavailable also for an answer that ends too early; internal for what is not HTTP. `sent`
  // becomes true when the server may have seen the request.
  Result<HttpAnswer> exchange(const Url& server, const HttpRequest& request, const BodySink& sink,
                              const StopEvent& stop, bool& sent);

 private:
  struct Idle {
    std::string server;
    NetStream stream;
    std::chrono::steady_clock::time_point since;
  };
  Result<NetStream> connect(const Url& server, const std::optional<Url>& proxy, const StopEvent& stop);
  Result<std::shared_ptr<const TlsContext>> tls();
  std::optional<NetStream> take_idle(const std::string& server);
  void keep(const std::string& server, NetStream stream);

  const TlsTrust trust_;
  const Environment environment_;
  const HttpTimes times_;
  std::mutex mutex_;
  std::shared_ptr<const TlsContext> tls_;
  std::vector<Idle> idle_;
};

}  // namespace flotilla
