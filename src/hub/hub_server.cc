#include "hub/hub_server.h"

#include <utility>  // Boost 1.74's awaitable.hpp uses std::exchange without it

#if defined(__clang__) && !defined(BOOST_ASIO_HAS_CO_AWAIT)
#define BOOST_ASIO_HAS_CO_AWAIT 1  // Boost 1.74 knows coroutines of Clang before they were standard only
#endif
#include <fmt/format.h>
#include <poll.h>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/strand.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <boost/beast/ssl.hpp>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <ctime>
#include <limits>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

#include "base/log.h"

namespace flotilla {
namespace {

namespace net = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
namespace ssl = net::ssl;
using boost::system::error_code;
using net::ip::tcp;
using Clock = std::chrono::steady_clock;

constexpr std::size_t kHeaderBytesMax = 16 << 10;
constexpr std::size_t kHeadersMax = 100;
constexpr std::size_t kPieceBytes = 64 << 10;  // each connection holds one while an object is on its way
constexpr std::chrono::seconds kLook{1};       // between two looks at a client that waits, and at its time
constexpr std::chrono::milliseconds kAcceptPause{200};
// What is read and dropped after an answer that came before its request's end.
constexpr std::size_t kDrainedBytesMax = 64 << 20;
constexpr std::chrono::seconds kDrainTime{5};
constexpr std::chrono::seconds kGoodbyeTime{1};  // for both sides to end TLS
constexpr std::chrono::minutes kMaintenance{10};
constexpr int kMetricsClientsMax = 32;
constexpr int kTooSlow = 408;  // not sent: who is that slow does not read it
#ifdef POLLRDHUP
constexpr short kLeft = POLLRDHUP | POLLHUP | POLLERR;
#else
constexpr short kLeft = POLLHUP | POLLERR;
#endif

using PlainStream = beast::tcp_stream;
using TlsStream = beast::ssl_stream<beast::tcp_stream>;

class Session;

struct Shared {
  Shared(const HubServerOptions& given, HubService& hub, HubMetrics& counters)
      : options(given), service(hub), metrics(counters), io(std::max(1, given.threads)) {}

  const HubServerOptions options;
  HubService& service;
  HubMetrics& metrics;
  ssl::context tls{ssl::context::tls_server};

  std::mutex mutex;  // guards those below
  std::condition_variable changed;
  std::map<Session*, std::weak_ptr<Session>> sessions;
  std::map<std::string, std::size_t> peers;  // connections of each
  std::atomic<bool> stopping = false;

  net::io_context io;  // last: what still waits in it goes first
};

std::string lower(std::string_view text) {
  std::string result(text);
  for (char& c : result) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c | 0x20) : c;
  return result;
}

std::string head_text(const HubAnswer& answer, bool keep_alive) {
  const auto reason = http::obsolete_reason(static_cast<http::status>(answer.status));
  std::string head = fmt::format("HTTP/1.1 {} {}\r\n", answer.status, std::string_view(reason.data(), reason.size()));
  for (const auto& [name, value] : answer.headers) head += fmt::format("{}: {}\r\n", name, value);
  head += fmt::format("date: {}\r\n", http_time(std::time(nullptr)));  // clients with a wrong clock go by it
  if (answer.status != 204 && answer.status != 304) {
    head += fmt::format("content-length: {}\r\n", answer.file ? answer.section.count : answer.body.size());
  }
  return head + (keep_alive ? "connection: keep-alive\r\n\r\n" : "connection: close\r\n\r\n");
}

// Where a coroutine ends.
struct Report {
  std::string_view what;
  void operator()(const std::exception_ptr& failure) const {
    try {
      if (failure) std::rethrow_exception(failure);
    } catch (const std::exception& error) {
      log_error("hub", "{} ended: {}", what, error.what());
    }
  }
};

auto into(error_code& error) { return net::redirect_error(net::use_awaitable, error); }

// One connection. Everything runs on its strand.
class Session : public std::enable_shared_from_this<Session> {
 public:
  Session(Shared& shared, std::string peer) : shared_(shared), peer_(std::move(peer)) {
    shared_.metrics.connections_changed(1);
  }
  virtual ~Session() {
    shared_.metrics.connections_changed(-1);
    const std::lock_guard lock(shared_.mutex);
    shared_.sessions.erase(this);
    if (const auto count = shared_.peers.find(peer_); count != shared_.peers.end() && --count->second == 0) {
      shared_.peers.erase(count);
    }
    shared_.changed.notify_all();
  }

  // `self` keeps the session as long as it runs.
  virtual net::awaitable<void> run(std::shared_ptr<Session> self) = 0;
  virtual net::any_io_executor executor() = 0;
  virtual void close() = 0;
  // Whether what a request waits for is there.
  virtual void look() = 0;
  // Closes unless a request is being answered; one that waits is answered now.
  void leave() {
    if (idle_) {
      close();
    } else {
      look();
    }
  }
  static void wake(const std::weak_ptr<Session>& session) {
    if (const auto held = session.lock()) net::post(held->executor(), [held] { held->look(); });
  }

 protected:
  Shared& shared_;
  const std::string peer_;
  bool idle_ = true;
};

template <typename Stream>
class StreamSession final : public Session {
 public:
  template <typename... Arguments>
  StreamSession(Shared& shared, std::string peer, Arguments&&... arguments)
      : Session(shared, std::move(peer)),
        stream_(std::forward<Arguments>(arguments)...),
        timer_(stream_.get_executor()) {}

  net::any_io_executor executor() override { return stream_.get_executor(); }
  void close() override {
    timer_.cancel();
    tcp_layer().close();
  }
  void look() override { timer_.cancel(); }

  net::awaitable<void> run([[maybe_unused]] std::shared_ptr<Session> self) override {
    error_code error;
    if constexpr (std::is_same_v<Stream, TlsStream>) {
      tcp_layer().expires_after(shared_.options.head_timeout);
      co_await stream_.async_handshake(ssl::stream_base::server, into(error));
      if (error) co_return;
    }
    bool more = true;
    while (more && !shared_.stopping) more = co_await exchange();
    co_await end();
  }

 private:
  beast::tcp_stream& tcp_layer() { return beast::get_lowest_layer(stream_); }

  // One request and its answer. False: no more of them.
  net::awaitable<bool> exchange() {
    error_code error;
    if (buffer_.size() == 0) {
      tcp_layer().expires_after(shared_.options.idle_timeout);
      const std::size_t count = co_await stream_.async_read_some(buffer_.prepare(4096), into(error));
      if (error) co_return false;
      buffer_.commit(count);
    }
    idle_ = false;
    unread_ = true;
    tcp_layer().expires_after(shared_.options.head_timeout);
    http::request_parser<http::buffer_body> parser;
    parser.header_limit(kHeaderBytesMax);
    parser.body_limit(std::numeric_limits<std::uint64_t>::max());  // the service decides that
    co_await http::async_read_header(stream_, buffer_, parser, into(error));
    if (error) {
      if (const auto refusal = refusal_of(error)) {
        shared_.service.refused(peer_, *refusal);
        if (refusal->http_status != kTooSlow) co_await send(error_answer(*refusal, "", ""), false, false);
      }
      co_return false;
    }
    const auto& request = parser.get();
    SigV4Request head;
    head.method = std::string(request.method_string());
    for (const auto& field : request) {
      const auto name = field.name_string(), value = field.value();
      head.headers.emplace_back(lower({name.data(), name.size()}), std::string(value.data(), value.size()));
    }
    if (head.headers.size() > kHeadersMax) {
      const S3Error flood{431, "RequestHeaderSectionTooLarge", fmt::format("more than {} headers", kHeadersMax)};
      shared_.service.refused(peer_, flood);
      co_await send(error_answer(flood, "", ""), false, false);
      co_return false;
    }
    const bool head_only = head.method == "HEAD";
    const bool continues = beast::iequals(request[http::field::expect], "100-continue");
    const auto call = shared_.service.begin(std::move(head), std::string(request.target()), peer_);
    bool keep_alive = request.keep_alive();
    if (call->wants_body()) {
      if (continues) {
        static constexpr std::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";
        tcp_layer().expires_after(shared_.options.client_timeout);
        co_await net::async_write(stream_, net::buffer(kContinue), into(error));
        if (error) co_return false;
      }
      const bool whole = co_await receive(parser, *call);
      if (!whole) co_return false;
    }
    unread_ = !parser.is_done();
    if (unread_) keep_alive = false;  // its rest is not worth reading

    std::optional<HubAnswer> answer = call->answer(shared_.stopping);
    if (!answer) {
      const auto waiter = call->wait([session = weak_from_this()] { wake(session); });
      while (!(answer = call->answer(shared_.stopping))) {
        timer_.expires_after(kLook);
        co_await timer_.async_wait(into(error));
        if (!tcp_layer().socket().is_open() || has_left()) co_return false;
      }
    }
    if (shared_.stopping) keep_alive = false;
    const bool sent = co_await send(*std::move(answer), keep_alive, head_only);
    idle_ = true;
    if (!sent) keep_alive = false;
    co_return keep_alive;
  }

  static std::optional<S3Error> refusal_of(error_code error) {
    if (error == http::error::header_limit) {
      return S3Error{431, "RequestHeaderSectionTooLarge",
                     fmt::format("more than {} bytes of headers", kHeaderBytesMax)};
    }
    if (error == beast::error::timeout) return too_slow("its head");
    const bool gone = error == http::error::end_of_stream || error == http::error::partial_message;
    if (gone || error.category() != make_error_code(http::error::bad_method).category()) return std::nullopt;
    return S3Error{400, "InvalidRequest", "this is not HTTP: " + error.message()};
  }

  static S3Error too_slow(std::string_view what) {
    return {kTooSlow, "RequestTimeout", fmt::format("{} does not come to its end", what)};
  }

  // The client cannot be told apart from one that waits, except by this.
  bool has_left() {
    pollfd state{.fd = tcp_layer().socket().native_handle(), .events = kLeft, .revents = 0};
    return ::poll(&state, 1, 0) > 0 && (state.revents & kLeft) != 0;
  }

  // The body into the call, piece by piece. False: the client is gone or too slow. An answer that came before the
  // body's end leaves the rest unread.
  net::awaitable<bool> receive(http::request_parser<http::buffer_body>& parser, HubService::Call& call) {
    const auto start = Clock::now();
    const double seconds =
        static_cast<double>(call.body_bytes()) / static_cast<double>(shared_.options.body_bytes_per_s_min);
    const auto deadline = start + std::chrono::duration_cast<Clock::duration>(shared_.options.body_base_time +
                                                                              std::chrono::duration<double>(seconds));
    Bytes piece(std::min<std::uint64_t>(kPieceBytes, call.body_bytes() + kHeaderBytesMax));
    while (!parser.is_done()) {
      parser.get().body().data = piece.data();
      parser.get().body().size = piece.size();
      tcp_layer().expires_after(shared_.options.client_timeout);
      error_code error;
      co_await http::async_read_some(stream_, buffer_, parser, into(error));
      if (error == http::error::need_buffer) error = {};
      if (error == beast::error::timeout || (!error && Clock::now() > deadline)) {
        shared_.service.refused(peer_, too_slow("its body"));
        co_return false;
      }
      if (error) co_return false;
      const std::size_t count = piece.size() - parser.get().body().size;
      if (count > 0 && !call.take(ByteSpan(piece).first(count))) co_return true;
    }
    co_return true;
  }

  net::awaitable<bool> send(HubAnswer answer, bool keep_alive, bool head_only) {
    error_code error;
    std::string text = head_text(answer, keep_alive);
    if (!head_only) text += answer.body;
    tcp_layer().expires_after(shared_.options.client_timeout);
    co_await net::async_write(stream_, net::buffer(text), into(error));
    if (error) co_return false;
    shared_.metrics.sent(head_only ? 0 : answer.body.size());
    if (!answer.file || head_only) co_return true;
    const std::uint64_t end = answer.section.offset + answer.section.count;
    for (std::uint64_t offset = answer.section.offset; offset < end;) {
      const auto piece =
          read_at(answer.file->fd.get(), offset, std::min<std::uint64_t>(kPieceBytes, end - offset), "an object");
      if (!piece.ok()) {
        log_warning("hub", "an answer ends in its middle: {}", piece.status().to_string());
        co_return false;
      }
      tcp_layer().expires_after(shared_.options.client_timeout);
      co_await net::async_write(stream_, net::buffer(*piece), into(error));
      if (error) co_return false;
      shared_.metrics.sent(piece->size());
      offset += piece->size();
    }
    co_return true;
  }

  net::awaitable<void> end() {
    error_code error;
    idle_ = false;
    if constexpr (std::is_same_v<Stream, TlsStream>) {
      tcp_layer().expires_after(kGoodbyeTime);
      co_await stream_.async_shutdown(into(error));
    }
    tcp_layer().socket().shutdown(tcp::socket::shutdown_send, error);
    // A connection that is closed while the client still sends would be reset, and the answer lost with it.
    if (unread_) {
      tcp_layer().expires_after(kDrainTime);
      Bytes dropped(16 << 10);
      std::size_t drained = 0;
      error = {};
      while (!error && drained < kDrainedBytesMax) {
        drained += co_await tcp_layer().async_read_some(net::buffer(dropped), into(error));
      }
    }
    tcp_layer().close();
  }

  Stream stream_;
  net::steady_timer timer_;
  beast::flat_buffer buffer_;
  bool unread_ = false;  // there may be more of a request
};

class BeastHubServer final : public HubServer {
 public:
  BeastHubServer(const HubServerOptions& options, HubService& service, HubMetrics& metrics)
      : shared_(options, service, metrics),
        acceptor_(net::make_strand(shared_.io)),
        metrics_acceptor_(net::make_strand(shared_.io)) {}

  ~BeastHubServer() override {
    maintenance_ = {};
    shared_.io.stop();
    for (std::jthread& thread : threads_) thread.join();
  }

  Status listen() {
    const HubServerOptions& options = shared_.options;
    if (options.tls) FLOTILLA_RETURN_IF_ERROR(load_tls(*options.tls));
    FLOTILLA_RETURN_IF_ERROR(
        open(acceptor_, options.address, options.port, options.tls.has_value() || options.plain_text));
    FLOTILLA_RETURN_IF_ERROR(open(metrics_acceptor_, options.metrics_address, options.metrics_port, true));
    port_ = acceptor_.local_endpoint().port();
    metrics_port_ = metrics_acceptor_.local_endpoint().port();
    net::co_spawn(acceptor_.get_executor(), accept(), Report{"accepting"});
    net::co_spawn(metrics_acceptor_.get_executor(), accept_metrics(), Report{"metrics"});
    for (int i = 0; i < std::max(1, options.threads); ++i) threads_.emplace_back([this] { shared_.io.run(); });
    maintenance_ = std::jthread([this](const std::stop_token& stop) { maintain(stop); });
    return ok_status();
  }

  std::uint16_t port() const override { return port_; }
  std::uint16_t metrics_port() const override { return metrics_port_; }

  void stop(std::chrono::nanoseconds grace) override {
    shared_.stopping = true;
    for (tcp::acceptor* acceptor : {&acceptor_, &metrics_acceptor_}) {
      net::post(acceptor->get_executor(), [acceptor] {
        error_code ignored;
        acceptor->close(ignored);
      });
    }
    for (const auto& session : sessions()) {
      net::post(session->executor(), [session] { session->leave(); });
    }
    std::unique_lock lock(shared_.mutex);
    shared_.changed.wait_for(lock, grace, [this] { return shared_.sessions.empty(); });
    lock.unlock();
    for (const auto& session : sessions()) {
      net::post(session->executor(), [session] { session->close(); });
    }
    lock.lock();
    shared_.changed.wait_for(lock, std::chrono::seconds(1), [this] { return shared_.sessions.empty(); });
  }

 private:
  std::vector<std::shared_ptr<Session>> sessions() {
    std::vector<std::shared_ptr<Session>> all;
    const std::lock_guard lock(shared_.mutex);
    for (const auto& [session, weak] : shared_.sessions) {
      if (auto held = weak.lock()) all.push_back(std::move(held));
    }
    return all;
  }

  Status load_tls(const TlsFiles& files) {
    error_code error;
    if (SSL_CTX_set_min_proto_version(shared_.tls.native_handle(), TLS1_3_VERSION) != 1) {
      return internal_error("OpenSSL has no TLS 1.3");
    }
    SSL_CTX_set_mode(shared_.tls.native_handle(), SSL_MODE_RELEASE_BUFFERS);  // 34 KiB of each connection that waits
    shared_.tls.use_certificate_chain_file(files.certificate.string(), error);
    if (error) return invalid_argument(fmt::format("certificate {}: {}", files.certificate.string(), error.message()));
    shared_.tls.use_private_key_file(files.key.string(), ssl::context::pem, error);
    if (error) return invalid_argument(fmt::format("key {}: {}", files.key.string(), error.message()));
    return ok_status();
  }

  static Status open(tcp::acceptor& acceptor, const std::string& text, std::uint16_t port, bool anywhere) {
    error_code error;
    const auto address = net::ip::make_address(text, error);
    if (error) return invalid_argument(fmt::format("'{}' is no IP address", text));
    if (!anywhere && !address.is_loopback()) {
      return invalid_argument(
          fmt::format("other machines reach {}: a certificate is needed (--self-signed, or --cert and"
                      " --key), or --plain-text where something else encrypts",
                      address.to_string()));
    }
    const tcp::endpoint endpoint(address, port);
    const auto failed = [&](std::string_view what) {
      return unavailable(fmt::format("{} port {}: {}: {}", address.to_string(), port, what, error.message()));
    };
    if (acceptor.open(endpoint.protocol(), error)) return failed("open");
    if (acceptor.set_option(net::socket_base::reuse_address(true), error)) return failed("reuse");
    if (acceptor.bind(endpoint, error)) return failed("bind");
    if (acceptor.listen(net::socket_base::max_listen_connections, error)) return failed("listen");
    return ok_status();
  }

  // Counts the connection, unless there are too many.
  bool enter(const std::string& peer) {
    const std::lock_guard lock(shared_.mutex);
    const HubServerOptions& options = shared_.options;
    if (shared_.sessions.size() >= options.connections_max) return false;
    const auto count = shared_.peers.try_emplace(peer, 0).first;
    if (count->second >= options.connections_per_peer_max) return false;
    ++count->second;
    return true;
  }

  net::awaitable<void> accept() {
    net::steady_timer pause(acceptor_.get_executor());
    while (acceptor_.is_open()) {
      error_code error;
      tcp::socket socket = co_await acceptor_.async_accept(net::make_strand(shared_.io), into(error));
      if (!acceptor_.is_open()) co_return;
      if (error) {
        log_warning("hub", "a connection was not accepted: {}", error.message());
        pause.expires_after(kAcceptPause);
        co_await pause.async_wait(into(error));
        continue;
      }
      const auto endpoint = socket.remote_endpoint(error);
      if (error) continue;
      std::string peer = endpoint.address().to_string();
      if (!enter(peer)) {
        shared_.service.connection_refused(peer);
        continue;
      }
      socket.set_option(tcp::no_delay(true), error);
      begin(std::move(peer), std::move(socket));
    }
  }

  void begin(std::string peer, tcp::socket socket) {
    std::shared_ptr<Session> session;
    if (shared_.options.tls) {
      session = std::make_shared<StreamSession<TlsStream>>(shared_, std::move(peer), std::move(socket), shared_.tls);
    } else {
      session = std::make_shared<StreamSession<PlainStream>>(shared_, std::move(peer), std::move(socket));
    }
    {
      const std::lock_guard lock(shared_.mutex);
      shared_.sessions.emplace(session.get(), session);
    }
    net::co_spawn(session->executor(), session->run(session), Report{"a connection"});
  }

  net::awaitable<void> accept_metrics() {
    while (metrics_acceptor_.is_open()) {
      error_code error;
      tcp::socket socket = co_await metrics_acceptor_.async_accept(into(error));
      if (!metrics_acceptor_.is_open()) co_return;
      if (error || metrics_clients_ == kMetricsClientsMax) continue;
      net::co_spawn(metrics_acceptor_.get_executor(), answer_metrics(std::move(socket)), Report{"metrics"});
    }
  }

  // On the strand of its acceptor, as all of these.
  net::awaitable<void> answer_metrics(tcp::socket socket) {
    ++metrics_clients_;
    error_code error;
    beast::tcp_stream stream(std::move(socket));
    stream.expires_after(shared_.options.head_timeout);
    beast::flat_buffer buffer;
    http::request_parser<http::empty_body> parser;
    parser.header_limit(kHeaderBytesMax);
    co_await http::async_read_header(stream, buffer, parser, into(error));
    if (!error) {
      const std::string text = metrics_answer(parser.get().target());
      co_await net::async_write(stream, net::buffer(text), into(error));
      stream.socket().shutdown(tcp::socket::shutdown_send, error);
    }
    --metrics_clients_;
  }

  std::string metrics_answer(beast::string_view target) {
    HubAnswer answer;
    if (target == "/metrics") {
      answer.headers = {{"content-type", "text/plain; version=0.0.4; charset=utf-8"}};
      answer.body = shared_.service.metrics_text();
    } else if (target == "/health") {
      const Status health = shared_.service.health();
      answer.status = health.ok() ? 200 : 503;
      answer.headers = {{"content-type", "text/plain"}};
      answer.body = health.ok() ? "ok\n" : health.message() + "\n";
    } else {
      answer.status = 404;
    }
    return head_text(answer, false) + answer.body;
  }

  void maintain(const std::stop_token& stop) {
    std::mutex mutex;
    std::condition_variable_any woken;
    std::unique_lock lock(mutex);
    while (!stop.stop_requested()) {
      const Status done = shared_.service.maintain(std::time(nullptr));
      if (!done.ok()) log_warning("hub", "counting what is there: {}", done.to_string());
      woken.wait_for(lock, stop, kMaintenance, [] { return false; });
    }
  }

  Shared shared_;
  tcp::acceptor acceptor_;
  tcp::acceptor metrics_acceptor_;
  std::uint16_t port_ = 0;
  std::uint16_t metrics_port_ = 0;
  int metrics_clients_ = 0;
  std::vector<std::jthread> threads_;
  std::jthread maintenance_;
};

}  // namespace

Result<std::unique_ptr<HubServer>> HubServer::start(const HubServerOptions& options, HubService& service,
                                                    HubMetrics& metrics) {
  auto server = std::make_unique<BeastHubServer>(options, service, metrics);
  FLOTILLA_RETURN_IF_ERROR(server->listen());
  return std::unique_ptr<HubServer>(std::move(server));
}

}  // namespace flotilla
