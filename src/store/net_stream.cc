#include "store/net_stream.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <condition_variable>
#include <cstdlib>
#include <filesystem>
#include <mutex>
#include <thread>
#include <vector>

#include <fmt/format.h>

#include "base/hashing.h"
#include "store/file_descriptor.h"

namespace flotilla {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kNextAddress{250};  // RFC 8305, section 5

Status asked_to_stop() { return cancelled("asked to stop"); }

// Milliseconds for poll(), rounded up so that a wait never ends before its time.
int left_until(Clock::time_point until) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now()).count();
  return static_cast<int>(std::clamp<std::int64_t>(left, 0, 60'000));
}

// Waits until one of the descriptors is ready; the last one is the stop's. Ok also when `until` has passed: then no
// descriptor says anything.
Status poll_until(std::vector<pollfd>& descriptors, Clock::time_point until, const StopEvent* stop) {
  descriptors.push_back({stop == nullptr ? -1 : stop->descriptor(), POLLIN, 0});
  while (true) {
    if (stop != nullptr && stop->requested()) return asked_to_stop();
    const int ready = ::poll(descriptors.data(), descriptors.size(), left_until(until));
    if (ready < 0 && errno != EINTR) return errno_status(errno, "poll");
    if (stop != nullptr && stop->requested()) return asked_to_stop();
    if (ready > 0 || Clock::now() >= until) break;
  }
  descriptors.pop_back();
  return ok_status();
}

// What the descriptor is ready for.
Result<short> wait_for(int descriptor, short events, const Patience& patience) {
  std::vector<pollfd> one = {{descriptor, events, 0}};
  FLOTILLA_RETURN_IF_ERROR(poll_until(one, patience.until, patience.stop));
  if (one[0].revents == 0) return deadline_exceeded("no byte moved in time");
  return one[0].revents;
}

bool would_block(int error) { return error == EAGAIN || error == EWOULDBLOCK; }

Status socket_error(int error, std::string_view what) { return unavailable(errno_status(error, what).message()); }

struct Addresses {
  std::mutex mutex;
  std::condition_variable_any changed;
  bool done = false;
  int error = 0;
  std::vector<std::pair<sockaddr_storage, socklen_t>> found;
};

// The two families in turn, the resolver's first choice first.
void interleave(std::vector<std::pair<sockaddr_storage, socklen_t>>& addresses) {
  if (addresses.empty()) return;
  const auto family = addresses[0].first.ss_family;
  const auto middle = std::stable_partition(addresses.begin(), addresses.end(),
                                            [&](const auto& address) { return address.first.ss_family == family; });
  const std::vector first(addresses.begin(), middle);
  const std::vector second(middle, addresses.end());
  addresses.clear();
  for (std::size_t i = 0; i < std::max(first.size(), second.size()); ++i) {
    if (i < first.size()) addresses.push_back(first[i]);
    if (i < second.size()) addresses.push_back(second[i]);
  }
}

// getaddrinfo() has no deadline: it works on a thread that nobody waits for once the time is over.
Result<std::vector<std::pair<sockaddr_storage, socklen_t>>> resolve(const std::string& host, int port,
                                                                    const Patience& patience) {
  const auto answer = std::make_shared<Addresses>();
  std::thread([answer, host, port] {
    addrinfo hints{};
    hints.ai_socktype = SOCK_STREAM;
    hints.ai_flags = AI_NUMERICSERV | AI_ADDRCONFIG;
    addrinfo* list = nullptr;
    int error = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &list);
    if (error == EAI_NONAME || error == EAI_ADDRFAMILY) {
      // Addresses of a machine without a network, as in a container: loopback does not count for AI_ADDRCONFIG.
      hints.ai_flags = AI_NUMERICSERV;
      error = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &list);
    }
    const std::lock_guard lock(answer->mutex);
    answer->error = error;
    for (const addrinfo* each = error == 0 ? list : nullptr; each != nullptr; each = each->ai_next) {
      sockaddr_storage storage{};
      std::copy_n(reinterpret_cast<const char*>(each->ai_addr), each->ai_addrlen, reinterpret_cast<char*>(&storage));
      answer->found.emplace_back(storage, each->ai_addrlen);
    }
    if (error == 0) ::freeaddrinfo(list);
    answer->done = true;
    answer->changed.notify_all();
  }).detach();
  std::unique_lock lock(answer->mutex);
  const std::stop_token stop = patience.stop == nullptr ? std::stop_token() : patience.stop->token();
  const bool done = answer->changed.wait_until(lock, stop, patience.until, [&] { return answer->done; });
  if (stop.stop_requested()) return asked_to_stop();
  if (!done) return deadline_exceeded(fmt::format("no answer about the name '{}' in time", host));
  if (answer->error != 0) return unavailable(fmt::format("host '{}': {}", host, ::gai_strerror(answer->error)));
  interleave(answer->found);
  return std::move(answer->found);
}

Result<FileDescriptor> begin_connection(const sockaddr_storage& address, socklen_t size) {
  FileDescriptor socket(::socket(address.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!socket.valid()) return socket_error(errno, "socket");
  const int on = 1;
  ::setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), size) != 0 && errno != EINPROGRESS) {
    return socket_error(errno, "connect");
  }
  return socket;
}

int pending_error(int descriptor) {
  int error = 0;
  socklen_t size = sizeof error;
  return ::getsockopt(descriptor, SOL_SOCKET, SO_ERROR, &error, &size) == 0 ? error : errno;
}

// OpenSSL's own way to a socket would raise SIGPIPE.
int descriptor_of(BIO* bio) { return static_cast<int>(reinterpret_cast<std::intptr_t>(BIO_get_data(bio))); }

const BIO_METHOD* socket_method() {
  static const BIO_METHOD* const method = [] {
    BIO_METHOD* made = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "socket without signals");
    FLOTILLA_CHECK(made != nullptr);
    BIO_meth_set_write(made, [](BIO* bio, const char* data, int size) {
      BIO_clear_retry_flags(bio);
      const auto sent = ::send(descriptor_of(bio), data, static_cast<std::size_t>(size), MSG_NOSIGNAL);
      if (sent < 0 && (would_block(errno) || errno == EINTR)) BIO_set_retry_write(bio);
      return static_cast<int>(sent);
    });
    BIO_meth_set_read(made, [](BIO* bio, char* data, int size) {
      BIO_clear_retry_flags(bio);
      const auto got = ::recv(descriptor_of(bio), data, static_cast<std::size_t>(size), 0);
      if (got < 0 && (would_block(errno) || errno == EINTR)) BIO_set_retry_read(bio);
      return static_cast<int>(got);
    });
    BIO_meth_set_ctrl(made, [](BIO*, int command, long, void*) -> long { return command == BIO_CTRL_FLUSH ? 1 : 0; });
    return made;
  }();
  return method;
}

std::string tls_errors() {
  std::string text;
  std::array<char, 256> line{};
  while (const unsigned long error = ERR_get_error()) {
    ERR_error_string_n(error, line.data(), line.size());
    text += fmt::format("{}{}", text.empty() ? "" : "; ", line.data());
  }
  return text.empty() ? "the connection was cut" : text;
}

std::string public_key_pin(SSL* tls) {
  const std::unique_ptr<X509, decltype(&X509_free)> certificate(SSL_get1_peer_certificate(tls), &X509_free);
  if (certificate == nullptr) return "none";
  unsigned char* der = nullptr;
  const int size = i2d_X509_PUBKEY(X509_get_X509_PUBKEY(certificate.get()), &der);
  if (size <= 0) return "none";
  const Sha256Digest digest = sha256(ByteSpan(der, static_cast<std::size_t>(size)));
  OPENSSL_free(der);
  return "sha256//" + base64(digest.bytes);
}

// Where systems keep what they trust; OpenSSL knows only the place of the system that it was built for.
constexpr const char* kBundles[] = {"/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt",
                                    "/etc/ssl/ca-bundle.pem", "/etc/ssl/cert.pem"};

}  // namespace

StopEvent::StopEvent(const std::stop_token& stop) : stop_(stop) {
  if (!stop.stop_possible() || ::pipe2(ends_, O_CLOEXEC | O_NONBLOCK) != 0) return;
  callback_ = std::make_unique<std::stop_callback<Notify>>(stop, Notify{ends_[1]});
}

StopEvent::~StopEvent() {
  callback_.reset();
  for (const int end : ends_) {
    if (end >= 0) ::close(end);
  }
}

void StopEvent::Notify::operator()() const {
  const char byte = 0;
  [[maybe_unused]] const auto written = ::write(end, &byte, 1);
}

Status pause_for(std::chrono::milliseconds time, const StopEvent& stop, const StopEvent& other) {
  std::vector<pollfd> second = {{other.descriptor(), POLLIN, 0}};
  FLOTILLA_RETURN_IF_ERROR(poll_until(second, Clock::now() + time, &stop));
  return second[0].revents == 0 ? ok_status() : asked_to_stop();
}

Result<std::shared_ptr<const TlsContext>> TlsContext::create(const TlsTrust& trust) {
  const std::shared_ptr<TlsContext> result(new TlsContext());
  SSL_CTX* context = SSL_CTX_new(TLS_client_method());
  if (context == nullptr) return internal_error(fmt::format("TLS: {}", tls_errors()));
  result->context_ = context;
  result->pin_ = trust.pin;
  SSL_CTX_set_min_proto_version(context, TLS1_2_VERSION);
  SSL_CTX_set_verify(context, trust.pin.empty() ? SSL_VERIFY_PEER : SSL_VERIFY_NONE, nullptr);
  SSL_CTX_set_mode(context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  if (!trust.ca_bundle.empty()) {
    if (SSL_CTX_load_verify_locations(context, trust.ca_bundle.c_str(), nullptr) != 1) {
      return invalid_argument(fmt::format("CA bundle '{}': {}", trust.ca_bundle, tls_errors()));
    }
    return std::shared_ptr<const TlsContext>(result);
  }
  SSL_CTX_set_default_verify_paths(context);
  if (std::getenv("SSL_CERT_FILE") == nullptr && std::getenv("SSL_CERT_DIR") == nullptr) {
    for (const char* bundle : kBundles) {
      std::error_code ignored;
      if (std::filesystem::exists(bundle, ignored) && SSL_CTX_load_verify_locations(context, bundle, nullptr) == 1)
        break;
    }
  }
  ERR_clear_error();
  return std::shared_ptr<const TlsContext>(result);
}

TlsContext::~TlsContext() { SSL_CTX_free(static_cast<SSL_CTX*>(context_)); }

struct NetStream::State {
  FileDescriptor socket;
  std::unique_ptr<SSL, decltype(&SSL_free)> tls{nullptr, &SSL_free};

  // Repeats an operation of OpenSSL until it is done. 0: the other side has ended the stream.
  template <typename Operation>
  Result<std::size_t> run_tls(const Patience& patience, const Operation& operation) {
    while (true) {
      ERR_clear_error();
      const int result = operation(tls.get());
      if (result > 0) return static_cast<std::size_t>(result);
      switch (SSL_get_error(tls.get(), result)) {
        case SSL_ERROR_WANT_READ: FLOTILLA_RETURN_IF_ERROR(wait_for(socket.get(), POLLIN, patience).status()); continue;
        case SSL_ERROR_WANT_WRITE:
          FLOTILLA_RETURN_IF_ERROR(wait_for(socket.get(), POLLOUT, patience).status());
          continue;
        case SSL_ERROR_ZERO_RETURN: return std::size_t{0};
        default: return unavailable(fmt::format("TLS: {}", tls_errors()));
      }
    }
  }

  // Whether bytes of the other side's data are there; handles what TLS itself has to say.
  bool has_input() {
    char byte;
    if (tls == nullptr) return ::recv(socket.get(), &byte, 1, MSG_PEEK) >= 0 || !would_block(errno);
    ERR_clear_error();
    const int result = SSL_peek(tls.get(), &byte, 1);
    return result > 0 || SSL_get_error(tls.get(), result) != SSL_ERROR_WANT_READ;
  }
};

NetStream::NetStream(std::unique_ptr<State> state) : state_(std::move(state)) {}
NetStream::NetStream(NetStream&&) noexcept = default;
NetStream& NetStream::operator=(NetStream&&) noexcept = default;
NetStream::~NetStream() = default;

Result<NetStream> NetStream::connect(const std::string& host, int port, const Patience& patience) {
  FLOTILLA_ASSIGN_OR_RETURN(const auto addresses, resolve(host, port, patience));
  Status failure = unavailable(fmt::format("host '{}' has no address", host));
  std::vector<FileDescriptor> attempts;
  std::size_t next = 0;
  while (next < addresses.size() || !attempts.empty()) {
    if (next < addresses.size()) {
      auto attempt = begin_connection(addresses[next].first, addresses[next].second);
      ++next;
      if (attempt.ok()) {
        attempts.push_back(*std::move(attempt));
      } else {
        failure = std::move(attempt).status();
        continue;
      }
    }
    std::vector<pollfd> descriptors;
    for (const FileDescriptor& attempt : attempts) descriptors.push_back({attempt.get(), POLLOUT, 0});
    const auto until = next < addresses.size() ? std::min(patience.until, Clock::now() + kNextAddress) : patience.until;
    FLOTILLA_RETURN_IF_ERROR(poll_until(descriptors, until, patience.stop));
    for (std::size_t i = attempts.size(); i-- > 0;) {
      if (descriptors[i].revents == 0) continue;
      const int error = pending_error(attempts[i].get());
      if (error == 0) {
        auto state = std::make_unique<State>();
        state->socket = std::move(attempts[i]);
        return NetStream(std::move(state));
      }
      failure = socket_error(error, fmt::format("connect to {}:{}", host, port));
      attempts.erase(attempts.begin() + static_cast<std::ptrdiff_t>(i));
    }
    if (Clock::now() >= patience.until)
      return deadline_exceeded(fmt::format("connect to {}:{}: no answer", host, port));
  }
  return failure;
}

Status NetStream::start_tls(const TlsContext& context, const std::string& host, const Patience& patience) {
  SSL* tls = SSL_new(static_cast<SSL_CTX*>(context.context_));
  if (tls == nullptr) return internal_error(fmt::format("TLS: {}", tls_errors()));
  state_->tls.reset(tls);
  BIO* bio = BIO_new(socket_method());
  if (bio == nullptr) return internal_error(fmt::format("TLS: {}", tls_errors()));
  BIO_set_data(bio, reinterpret_cast<void*>(static_cast<std::intptr_t>(state_->socket.get())));
  BIO_set_init(bio, 1);
  SSL_set_bio(tls, bio, bio);
  // The name to check the certificate against; server names in the handshake are names only (RFC 6066).
  if (X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(tls), host.c_str()) != 1) {
    ERR_clear_error();
    if (SSL_set1_host(tls, host.c_str()) != 1 || SSL_set_tlsext_host_name(tls, host.c_str()) != 1) {
      return invalid_argument(fmt::format("TLS: '{}' is no host name", host));
    }
  }
  const auto done = state_->run_tls(patience, [](SSL* each) { return SSL_connect(each); });
  if (!context.pin_.empty()) {
    if (!done.ok()) return done.status();
    const std::string found = public_key_pin(tls);
    if (*done > 0 && found == context.pin_) return ok_status();
    return permission_denied(fmt::format("TLS: {} has the key {}; expected the pin {}", host, found, context.pin_));
  }
  if (const long verdict = SSL_get_verify_result(tls); verdict != X509_V_OK) {
    return permission_denied(
        fmt::format("TLS: the certificate of {} is not trusted: {}; AWS_CA_BUNDLE names a file with "
                    "certificates to trust",
                    host, X509_verify_cert_error_string(verdict)));
  }
  if (done.ok() && *done == 0) return unavailable("TLS: the other side has left");
  return done.status();
}

Result<std::size_t> NetStream::read_some(std::span<std::uint8_t> buffer, const Patience& patience) {
  const int size = static_cast<int>(std::min<std::size_t>(buffer.size(), 1 << 30));
  if (state_->tls != nullptr) {
    return state_->run_tls(patience, [&](SSL* tls) { return SSL_read(tls, buffer.data(), size); });
  }
  while (true) {
    const auto got = ::recv(state_->socket.get(), buffer.data(), buffer.size(), 0);
    if (got >= 0) return static_cast<std::size_t>(got);
    if (would_block(errno)) {
      FLOTILLA_RETURN_IF_ERROR(wait_for(state_->socket.get(), POLLIN, patience).status());
    } else if (errno != EINTR) {
      return socket_error(errno, "read");
    }
  }
}

Result<std::size_t> NetStream::write_some(ByteSpan bytes, const Patience& patience) {
  while (true) {
    FLOTILLA_ASSIGN_OR_RETURN(const short ready, wait_for(state_->socket.get(), POLLIN | POLLOUT, patience));
    if ((ready & ~POLLOUT) != 0 && state_->has_input()) return std::size_t{0};
    if ((ready & POLLOUT) == 0) continue;
    if (state_->tls != nullptr) {
      const int size = static_cast<int>(std::min<std::size_t>(bytes.size(), 1 << 20));
      return state_->run_tls(patience, [&](SSL* tls) { return SSL_write(tls, bytes.data(), size); });
    }
    const auto sent = ::send(state_->socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent > 0) return static_cast<std::size_t>(sent);
    if (sent < 0 && !would_block(errno) && errno != EINTR) return socket_error(errno, "write");
  }
}

bool NetStream::is_idle() { return !state_->has_input(); }

}  // namespace flotilla
