#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <span>
#include <stop_token>
#include <string>

#include "base/bytes.h"
#include "base/status.h"

// Outbound connections: TCP and TLS, on which every wait has a deadline and ends at once when a stop is requested.
namespace flotilla {

// A stop request as something that poll() sees. Thread safe.
class StopEvent {
 public:
  explicit StopEvent(const std::stop_token& stop);
  ~StopEvent();
  StopEvent(const StopEvent&) = delete;
  StopEvent& operator=(const StopEvent&) = delete;
  bool requested() const { return stop_.stop_requested(); }
  const std::stop_token& token() const { return stop_; }
  int descriptor() const { return ends_[0]; }

 private:
  struct Notify {
    int end;
    void operator()() const;
  };
  std::stop_token stop_;
  int ends_[2] = {-1, -1};  // without a stop that may come, there is no pipe
  std::unique_ptr<std::stop_callback<Notify>> callback_;
};

// How long a wait may take. Past `until` it is deadline_exceeded; with a stop requested, cancelled.
struct Patience {
  std::chrono::steady_clock::time_point until;
  const StopEvent* stop = nullptr;
};

// cancelled when either is requested before the time has passed.
Status pause_for(std::chrono::milliseconds time, const StopEvent& stop, const StopEvent& other);

struct TlsTrust {
  std::string ca_bundle;  // a PEM file; empty: SSL_CERT_FILE and SSL_CERT_DIR, else the system's, wherever it has them
  // "sha256//BASE64": of the server's public key, as curl has it. Then no certificate authority and no name counts.
  std::string pin;
};

// Certificates to trust and the settings of all connections of a client. Thread safe once made.
class TlsContext {
 public:
  static Result<std::shared_ptr<const TlsContext>> create(const TlsTrust& trust);
  ~TlsContext();
  TlsContext(const TlsContext&) = delete;
  TlsContext& operator=(const TlsContext&) = delete;

 private:
  friend class NetStream;
  TlsContext() = default;
  void* context_ = nullptr;
  std::string pin_;
};

// A connected stream of bytes. One thread at a time. Errors: unavailable when the other side is away or leaves,
// deadline_exceeded, cancelled; permission_denied for a certificate that is not trusted.
class NetStream {
 public:
  // Tries the host's addresses, IPv6 and IPv4 in turn, each a little after the one before it (RFC 8305), until one of
  // them answers.
  static Result<NetStream> connect(const std::string& host, int port, const Patience& patience);
  NetStream(NetStream&&) noexcept;
  NetStream& operator=(NetStream&&) noexcept;
  ~NetStream();

  // From here on all bytes go through TLS. The certificate must be for `host`, a name or an address.
  Status start_tls(const TlsContext& context, const std::string& host, const Patience& patience);
  // At least one byte; 0 when the other side has ended the stream.
  Result<std::size_t> read_some(std::span<std::uint8_t> buffer, const Patience& patience);
  // At least one byte; 0 when something is there to be read instead: an answer that comes early.
  Result<std::size_t> write_some(ByteSpan bytes, const Patience& patience);
  // Whether nothing has come, not even an end: the connection can carry another request.
  bool is_idle();

 private:
  struct State;
  explicit NetStream(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace flotilla
