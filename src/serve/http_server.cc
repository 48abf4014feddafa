#include "serve/http_server.h"

#include <utility>  // Boost 1.74's awaitable.hpp uses std::exchange without it

#include <fmt/format.h>
#include <poll.h>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <deque>
#include <iterator>
#include <optional>
#include <random>
#include <set>
#include <thread>

#include "base/log.h"
#include "model/tokenizer_utf8.h"
#include "serve/api_answer.h"
#include "serve/http_reply.h"

namespace flotilla {
namespace {

namespace net = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using boost::system::error_code;
using net::ip::tcp;

constexpr std::size_t kHeaderBytesMax = 16 << 10;
constexpr std::size_t kPieceLogprobs = 1024;       // that become JSON in one go: some milliseconds
constexpr std::size_t kUnsentBytesMax = 64 << 20;  // of a stream that its client does not take
// What is read and dropped after an answer that came before its request's end.
constexpr std::size_t kDrainedBytesMax = 64 << 20;
constexpr std::chrono::seconds kDrainTime{5};
constexpr std::chrono::milliseconds kAcceptPause{200};  // after a connection that could not be accepted
// Connections beyond connections_max that are told so at a time; what comes then is closed without a word.
constexpr std::size_t kRefusalsMax = 16;
// Between two looks at a client that has sent its next request already, which keeps its socket readable.
constexpr std::chrono::milliseconds kLeavingPause{200};
#ifdef POLLRDHUP
constexpr short kLeft = POLLRDHUP | POLLHUP | POLLERR;
#else
constexpr short kLeft = POLLHUP | POLLERR;  // where the first says it of the sending half too
#endif
constexpr std::string_view kJson = "application/json";
constexpr std::string_view kModelPath = "/v1/models/";

std::uint64_t random_bits() {
  std::random_device device;
  return std::uint64_t{device()} << 32 | device();
}

class Connection;

std::int64_t unix_seconds() { return std::chrono::duration_cast<std::chrono::seconds>(system_clock().wall()).count(); }

// What all connections share. Everything runs on the one thread of `io`. The sinks of requests keep it alive: the
// service may outlive the server.
struct Shared : std::enable_shared_from_this<Shared> {
  Shared(const HttpOptions& http_options, const ServedModel& served, GenerationService& generation,
         ServeMetrics& counters)
      : options(http_options), model(served), service(generation), metrics(counters) {}

  const HttpOptions options;
  const ServedModel& model;
  GenerationService& service;
  ServeMetrics& metrics;
  const std::int64_t started = unix_seconds();
  std::set<Connection*> connections;
  std::size_t refused = 0;  // of them, those that are told to come again
  bool stopping = false;
  net::io_context io{1};  // last: what still waits in it goes first
};

enum class Route { kHealth, kMetrics, kModels, kModel, kChat, kCompletion };

class Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(tcp::socket socket, Shared& shared) : shared_(shared), stream_(std::move(socket)), look_again_(shared.io) {
    shared_.connections.insert(this);
  }
  ~Connection() {
    shared_.connections.erase(this);
    if (refused_) --shared_.refused;
  }

  void start() { read_head(); }
  void refuse_to_start() {
    refused_ = true;
    ++shared_.refused;
    fail({.http_status = 503, .type = "server_error", .message = "too many connections", .code = "unavailable"});
  }
  // Closes as soon as nothing is being answered.
  void leave() {
    keep_alive_ = false;
    if (reading_head_ || draining_) close();
  }
  void close() {
    if (closed_) return;
    closed_ = true;
    const auto self = std::move(self_);
    if (request_id_) {
      shared_.service.cancel(*request_id_);
      shared_.metrics.request_ended(RequestOutcome::kCancelled, {});
    }
    look_again_.cancel();
    error_code ignored;
    stream_.socket().close(ignored);
  }

 private:
  template <typename Handler>
  auto bound(Handler handler) {
    return [self = shared_from_this(), handler](auto&&... arguments) {
      if (!self->closed_) handler(*self, std::forward<decltype(arguments)>(arguments)...);
    };
  }

  void read_head() {
    reading_head_ = true;
    parser_.emplace();
    parser_->header_limit(kHeaderBytesMax);
    parser_->body_limit(shared_.options.body_bytes_max);
    stream_.expires_after(shared_.options.idle_timeout);
    http::async_read_header(stream_, buffer_, *parser_,
                            bound([](Connection& self, error_code error, std::size_t) { self.on_head(error); }));
  }

  void on_head(error_code error) {
    reading_head_ = false;
    if (error) return on_read_error(error);
    keep_alive_ = parser_->keep_alive() && !shared_.stopping;
    arrival_ = system_clock().monotonic();
    if (const auto refused = check_head()) return fail(*refused);
    if (parser_->is_done()) return on_body({});
    if (beast::iequals(parser_->get()[http::field::expect], "100-continue")) {
      static constexpr std::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";
      stream_.expires_after(shared_.options.client_timeout);
      net::async_write(stream_, net::buffer(kContinue), bound([](Connection& self, error_code failed, std::size_t) {
                         failed ? self.close() : self.read_body();
                       }));
    } else {
      read_body();
    }
  }

  void read_body() {
    stream_.expires_after(shared_.options.client_timeout);  // anew for each piece
    parser_->eager(true);
    http::async_read_some(stream_, buffer_, *parser_, bound([](Connection& self, error_code failed, std::size_t) {
                            failed || self.parser_->is_done() ? self.on_body(failed) : self.read_body();
                          }));
  }

  void on_read_error(error_code error) {
    if (error == http::error::body_limit) {
      return fail({.http_status = 413,
                   .message = fmt::format("the body is larger than {} bytes", shared_.options.body_bytes_max),
                   .code = "body_too_large"});
    }
    if (error == http::error::header_limit) {
      return fail({.http_status = 431, .message = fmt::format("the header is larger than {} bytes", kHeaderBytesMax)});
    }
    const bool gone = error == http::error::end_of_stream || error == http::error::partial_message;
    if (gone || error.category() != make_error_code(http::error::bad_method).category()) return close();
    fail({.message = "this is not HTTP: " + error.message()});
  }

  // The path without its query.
  std::string_view path() const {
    const auto target = parser_->get().target();
    const std::string_view text(target.data(), target.size());
    return text.substr(0, text.find('?'));
  }

  bool takes_post() const { return route_ == Route::kChat || route_ == Route::kCompletion; }

  std::optional<ApiError> check_head() {
    const auto& request = parser_->get();
    const auto text = [&](http::field name) { return std::string_view(request[name].data(), request[name].size()); };
    static constexpr std::pair<std::string_view, Route> kRoutes[] = {{"/health", Route::kHealth},
                                                                     {"/metrics", Route::kMetrics},
                                                                     {"/v1/models", Route::kModels},
                                                                     {"/v1/chat/completions", Route::kChat},
                                                                     {"/v1/completions", Route::kCompletion}};
    std::optional<Route> route;
    for (const auto& [known, which] : kRoutes) {
      if (path() == known) route = which;
    }
    if (path().starts_with(kModelPath)) route = Route::kModel;
    if (!route) {
      return ApiError{.http_status = 404,
                      .message = fmt::format("there is no {}; docs/serve.md lists what there is", path()),
                      .code = "unknown_url"};
    }
    route_ = *route;
    const bool post = takes_post();
    if (request.method() != (post ? http::verb::post : http::verb::get)) {
      return ApiError{.http_status = 405,
                      .message = fmt::format("{} takes {} only", path(), post ? "POST" : "GET"),
                      .code = "method_not_allowed"};
    }
    if (shared_.options.token.empty()) {
      // A page in a browser of this machine must not reach the server under a name of its own.
      if (const auto host = text(http::field::host); !host.empty() && !names_loopback(host)) {
        return ApiError{
            .http_status = 403,
            .message = "the Host field names another machine; a server without a token answers to localhost only",
            .code = "host_not_allowed"};
      }
    } else if (route_ != Route::kHealth) {
      const auto given = text(http::field::authorization);
      constexpr std::string_view kBearer = "Bearer ";
      if (!given.starts_with(kBearer) || !same_secret(given.substr(kBearer.size()), shared_.options.token)) {
        return ApiError{.http_status = 401,
                        .message = "expected Authorization: Bearer with this server's token",
                        .code = "invalid_api_key"};
      }
    }
    // Pages of other sites cannot send this type without being asked first, which fails.
    const auto type = text(http::field::content_type);
    if (const auto end = std::min(type.find(';'), type.size());
        post && !beast::iequals({type.data(), end}, {kJson.data(), kJson.size()})) {
      return ApiError{
          .http_status = 415, .message = "expected Content-Type: application/json", .code = "unsupported_media_type"};
    }
    return std::nullopt;
  }

  void on_body(error_code error) {
    if (error) return on_read_error(error);
    switch (route_) {
      case Route::kHealth: return reply(200, kJson, R"({"status":"ok"})");
      case Route::kMetrics: return reply(200, "text/plain; version=0.0.4; charset=utf-8", shared_.metrics.text());
      case Route::kModels:
        return reply(200, kJson, nlohmann::ordered_json{{"object", "list"}, {"data", {model_json()}}}.dump());
      case Route::kModel: return reply_model();
      case Route::kChat: return generate(ApiKind::kChat);
      case Route::kCompletion: return generate(ApiKind::kCompletion);
    }
  }

  void reply_model() {
    const auto name = percent_decoded(path().substr(kModelPath.size()));
    if (!name) {
      return fail(
          {.message = fmt::format("{}: expected two hexadecimal digits after each %", path()), .code = "invalid_url"});
    }
    if (*name == shared_.model.name) return reply(200, kJson, model_json().dump());
    fail({.http_status = 404,
          .message = fmt::format("only \"{}\" is served here", shared_.model.name),
          .param = "model",
          .code = "model_not_found"});
  }

  nlohmann::ordered_json model_json() const {
    return {{"id", shared_.model.name},
            {"object", "model"},
            {"created", shared_.started},
            {"owned_by", "flotilla"},
            {"max_model_len", shared_.model.context}};
  }

  void generate(ApiKind kind) {
    auto parsed = parse_api_request(kind, parser_->get().body(), shared_.model, random_bits());
    if (const auto* refused = std::get_if<ApiError>(&parsed)) {
      shared_.metrics.request_ended(RequestOutcome::kRefused, {});
      return fail(*refused);
    }
    ApiRequest& request = std::get<ApiRequest>(parsed);
    request.generation.timeout = shared_.options.request_timeout;
    GenerationRequest generation = request.generation;
    streams_ = request.stream;
    head_sent_ = first_seen_ = false;
    answer_.emplace(std::move(request), shared_.model, fmt::format("{:016x}", random_bits()), unix_seconds());
    self_ = shared_from_this();
    request_id_ = shared_.service.submit(
        std::move(generation), [shared = shared_.shared_from_this(), weak = weak_from_this()](GenerationEvent event) {
          net::post(shared->io, [weak, event = std::move(event)]() mutable {
            if (const auto self = weak.lock(); self && !self->closed_) self->take(std::move(event));
          });
        });
    watch_for_leaving(*request_id_);
  }

  // While an answer is computed nothing is read, so that only this notices a client that closes: poll sees the end also
  // behind bytes of a next request.
  void watch_for_leaving(RequestId id) {
    stream_.socket().async_wait(tcp::socket::wait_read, bound([id](Connection& self, error_code error) {
                                  if (error || self.request_id_ != id) return;
                                  pollfd state{
                                      .fd = self.stream_.socket().native_handle(), .events = kLeft, .revents = 0};
                                  if (::poll(&state, 1, 0) > 0) return self.close();
                                  self.look_again_.expires_after(kLeavingPause);
                                  self.look_again_.async_wait(self.bound([id](Connection& later, error_code stopped) {
                                    if (!stopped) later.watch_for_leaving(id);
                                  }));
                                }));
  }

  // One piece a turn: other connections have theirs between, also where the events of many choices come at once.
  void take(GenerationEvent event) {
    const bool waits = !events_.empty();
    std::ranges::move(in_pieces(std::move(event), kPieceLogprobs), std::back_inserter(events_));
    if (!waits) post_next();
  }
  void post_next() {
    net::post(shared_.io, bound([](Connection& self) { self.take_next(); }));
  }
  void take_next() {
    const GenerationEvent event = std::move(events_.front());
    events_.pop_front();
    on_event(event);
    if (!events_.empty()) post_next();
  }

  void on_event(const GenerationEvent& event) {
    if (!first_seen_ && !event.tokens.empty()) {
      first_seen_ = true;
      shared_.metrics.first_token(system_clock().monotonic() - arrival_);
    }
    if (event.end) note_end(*event.end);
    if (event.end && !event.end->ok() && !head_sent_) return fail(api_error_of(*event.end));
    if (!streams_) {
      if (!event.end) return answer_->add(event);
      return reply(200, kJson, answer_->whole(event.usage));
    }
    if (!head_sent_) {
      head_sent_ = true;
      chunked_ = parser_->get().version() >= 11;
      if (!chunked_) keep_alive_ = false;  // the end of the connection ends the body
      send(http_head(200, "text/event-stream; charset=utf-8", keep_alive_,
                     chunked_ ? std::vector<std::string>{"Transfer-Encoding: chunked"} : std::vector<std::string>{}));
    }
    const std::string data = answer_->chunks(event);
    send(chunked_ ? http_chunk(data) : data);
    if (unsent_.size() > kUnsentBytesMax) return close();
    if (!event.end) return;
    if (chunked_) send(std::string(kHttpLastChunk));
    finish();
  }

  void note_end(const Status& end) {
    request_id_.reset();
    look_again_.cancel();
    self_.reset();  // the caller holds another
    RequestOutcome outcome = RequestOutcome::kFailed;
    if (end.ok()) outcome = RequestOutcome::kCompleted;
    if (end.code() == StatusCode::kInvalidArgument) outcome = RequestOutcome::kRefused;
    if (end.code() == StatusCode::kResourceExhausted) outcome = RequestOutcome::kQueueFull;
    if (end.code() == StatusCode::kCancelled) outcome = RequestOutcome::kCancelled;
    if (end.code() == StatusCode::kUnavailable) outcome = RequestOutcome::kCancelled;  // by a stop
    if (end.code() == StatusCode::kDeadlineExceeded) outcome = RequestOutcome::kTimeLimit;
    shared_.metrics.request_ended(outcome, system_clock().monotonic() - arrival_);
    if (outcome == RequestOutcome::kFailed) log_warning("serve", "a request failed: {}", end.to_string());
  }

  void reply(int status, std::string_view type, std::string_view body) {
    send(http_reply(status, type, body, keep_alive_));
    finish();
  }
  void fail(const ApiError& error) {
    if (!parser_ || !parser_->is_done()) keep_alive_ = false;  // its rest is not worth reading
    std::vector<std::string> fields;
    if (error.http_status == 405) fields.push_back(takes_post() ? "Allow: POST" : "Allow: GET");
    std::string answer = http_reply(error, keep_alive_, std::move(fields));
    // A client reads no body after a HEAD, which is no route's method: what follows would be its next answer.
    if (parser_ && parser_->get().method() == http::verb::head) answer.resize(answer.find("\r\n\r\n") + 4);
    send(std::move(answer));
    finish();
  }

  // What is sent is written in order, one write at a time.
  void send(std::string data) {
    if (unsent_.empty()) {
      unsent_ = std::move(data);
    } else {
      unsent_ += data;
    }
    if (!writing_) write();
  }
  void write() {
    writing_ = true;
    if (sent_ == in_flight_.size()) {
      in_flight_ = std::exchange(unsent_, {});
      sent_ = 0;
    }
    stream_.expires_after(shared_.options.client_timeout);  // anew for each piece
    stream_.async_write_some(net::buffer(in_flight_) + sent_,
                             bound([](Connection& self, error_code error, std::size_t count) {
                               self.writing_ = false;
                               if (error) return self.close();
                               self.sent_ += count;
                               if (self.sent_ < self.in_flight_.size() || !self.unsent_.empty()) return self.write();
                               if (self.finished_) self.next();
                             }));
  }

  // The answer is complete, though perhaps not sent.
  void finish() {
    finished_ = true;
    if (!writing_ && !closed_) next();
  }
  void next() {
    finished_ = false;
    answer_.reset();
    if (keep_alive_ && !shared_.stopping) return read_head();
    error_code ignored;
    stream_.socket().shutdown(tcp::socket::shutdown_send, ignored);
    draining_ = true;
    stream_.expires_after(kDrainTime);
    dropped_.resize(64 << 10);
    drain();
  }

  // A connection that is closed while the client still sends would be reset, and the answer lost with it.
  void drain() {
    stream_.async_read_some(net::buffer(dropped_), bound([](Connection& self, error_code error, std::size_t count) {
                              self.drained_ += count;
                              if (error || self.drained_ > kDrainedBytesMax) return self.close();
                              self.drain();
                            }));
  }

  Shared& shared_;
  beast::tcp_stream stream_;
  net::steady_timer look_again_;
  beast::flat_buffer buffer_;
  std::optional<http::request_parser<http::string_body>> parser_;
  bool reading_head_ = false;
  bool draining_ = false;
  bool keep_alive_ = false;
  bool closed_ = false;
  bool refused_ = false;  // there are too many connections

  Route route_ = Route::kHealth;
  std::chrono::nanoseconds arrival_{0};
  std::optional<ApiAnswer> answer_;
  std::shared_ptr<Connection> self_;     // while the service works: nothing else may be waiting for this connection
  std::deque<GenerationEvent> events_;   // not yet answered
  std::optional<RequestId> request_id_;  // while the service works on it
  bool streams_ = false;
  bool head_sent_ = false;
  bool first_seen_ = false;
  bool chunked_ = false;

  std::string unsent_;
  std::string in_flight_;
  std::size_t sent_ = 0;  // of in_flight_
  bool writing_ = false;
  bool finished_ = false;
  std::string dropped_;
  std::size_t drained_ = 0;
};

class BeastServer final : public HttpServer {
 public:
  BeastServer(const HttpOptions& options, const ServedModel& model, GenerationService& service, ServeMetrics& metrics)
      : shared_(std::make_shared<Shared>(options, model, service, metrics)),
        acceptor_(shared_->io),
        pause_(shared_->io),
        work_(shared_->io.get_executor()) {}

  ~BeastServer() override {
    shared_->io.stop();
    if (thread_.joinable()) thread_.join();
    for (Connection* connection : all_connections()) connection->close();
  }

  Status listen() {
    if (const std::string& name = shared_->model.name; utf8_valid_prefix(name) != name.size()) {
      return invalid_argument("the model's name is not UTF-8, as JSON needs it: another is needed (--name)");
    }
    error_code error;
    const auto address = net::ip::make_address(shared_->options.address, error);
    if (error) return invalid_argument(fmt::format("'{}' is no IP address", shared_->options.address));
    if (!address.is_loopback() && shared_->options.token.empty()) {
      return invalid_argument(fmt::format(
          "other machines reach {}: a token that clients have to send is needed (--token)", address.to_string()));
    }
    const tcp::endpoint endpoint(address, shared_->options.port);
    const auto failed = [&](std::string_view what) {
      return unavailable(
          fmt::format("{} port {}: {}: {}", address.to_string(), shared_->options.port, what, error.message()));
    };
    if (acceptor_.open(endpoint.protocol(), error)) return failed("open");
    if (acceptor_.set_option(net::socket_base::reuse_address(true), error)) return failed("reuse");
    if (acceptor_.bind(endpoint, error)) return failed("bind");
    if (acceptor_.listen(net::socket_base::max_listen_connections, error)) return failed("listen");
    port_ = acceptor_.local_endpoint().port();
    accept();
    thread_ = std::jthread([this] { shared_->io.run(); });
    return ok_status();
  }

  std::uint16_t port() const override { return port_; }

  void stop(std::chrono::nanoseconds grace) override {
    net::post(shared_->io, [this] {
      shared_->stopping = true;
      error_code ignored;
      acceptor_.close(ignored);
      pause_.cancel();
      for (Connection* connection : all_connections()) connection->leave();
    });
    shared_->service.stop(grace);
    work_.reset();
    if (thread_.joinable()) thread_.join();  // it ends with the last connection
  }

 private:
  std::vector<Connection*> all_connections() const {
    return {shared_->connections.begin(), shared_->connections.end()};
  }

  void accept() {
    acceptor_.async_accept([this](error_code error, tcp::socket socket) {
      if (!acceptor_.is_open()) return;
      if (!error) {
        error_code ignored;
        socket.set_option(tcp::no_delay(true), ignored);
        const bool full = shared_->connections.size() - shared_->refused >= shared_->options.connections_max;
        if (!full || shared_->refused < kRefusalsMax) {
          const auto connection = std::make_shared<Connection>(std::move(socket), *shared_);
          full ? connection->refuse_to_start() : connection->start();
        } else {
          socket.close(ignored);
        }
      } else {
        log_warning("serve", "a connection was not accepted: {}", error.message());
        pause_.expires_after(kAcceptPause);
        return pause_.async_wait([this](error_code stopped) {
          if (!stopped) accept();
        });
      }
      accept();
    });
  }

  const std::shared_ptr<Shared> shared_;
  tcp::acceptor acceptor_;
  net::steady_timer pause_;
  net::executor_work_guard<net::io_context::executor_type> work_;  // until the service has ended
  std::uint16_t port_ = 0;
  std::jthread thread_;
};

}  // namespace

Result<std::unique_ptr<HttpServer>> HttpServer::start(const HttpOptions& options, const ServedModel& model,
                                                      GenerationService& service, ServeMetrics& metrics) {
  auto server = std::make_unique<BeastServer>(options, model, service, metrics);
  FLOTILLA_RETURN_IF_ERROR(server->listen());
  return std::unique_ptr<HttpServer>(std::move(server));
}

}  // namespace flotilla
