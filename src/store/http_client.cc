#include "store/http_client.h"

#include <boost/asio/buffer.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/buffer_body.hpp>
#include <boost/beast/http/parser.hpp>

#include <algorithm>
#include <array>
#include <limits>

#include <fmt/format.h>

namespace flotilla {
namespace {

namespace beast = boost::beast;
namespace http = beast::http;
using Clock = std::chrono::steady_clock;

constexpr std::size_t kReadBytes = 64 << 10;
constexpr std::uint32_t kHeaderBytesMax = 64 << 10;
constexpr std::size_t kIdleMax = 16;

// Ends an exchange that does not get on.
class Pace {
 public:
  Pace(const HttpTimes& times, const StopEvent& stop) : times_(times), stop_(stop) { restart(); }

  void restart(std::chrono::milliseconds window = {}) {
    until_ = Clock::now() + std::max(window, times_.window);
    bytes_ = 0;
  }

  // `operation` with a deadline, until it moves some bytes.
  template <typename Operation>
  Result<std::size_t> run(const Operation& operation) {
    while (true) {
      if (stop_.requested()) return cancelled("asked to stop");
      auto moved = operation(Patience{until_, &stop_});
      if (!moved.ok() && moved.status().code() != StatusCode::kDeadlineExceeded) return moved;
      if (moved.ok()) bytes_ += *moved;
      if (Clock::now() >= until_) {
        if (bytes_ < times_.window_bytes) {
          return deadline_exceeded(fmt::format("{} bytes in {} ms; at least {} are wanted", bytes_,
                                               times_.window.count(), times_.window_bytes));
        }
        restart();
      }
      if (moved.ok()) return moved;
    }
  }

 private:
  const HttpTimes& times_;
  const StopEvent& stop_;
  Clock::time_point until_;
  std::size_t bytes_ = 0;
};

Result<std::string> head_text(const HttpRequest& request, std::string_view target) {
  std::string text = fmt::format("{} {} HTTP/1.1\r\n", request.method, target);
  for (const auto& [name, value] : request.headers) {
    if (value.find_first_of(std::string_view("\r\n\0", 3)) != value.npos) {
      return invalid_argument(fmt::format("the header '{}' holds the end of a line", name));
    }
    text += fmt::format("{}: {}\r\n", name, value);
  }
  if (!request.body.empty() || request.method == "PUT" || request.method == "POST") {
    text += fmt::format("content-length: {}\r\n", request.body.size());
  }
  return text + "\r\n";
}

// True when all bytes went out; false when an answer came first.
Result<bool> write_all(NetStream& stream, ByteSpan bytes, Pace& pace, bool& sent) {
  while (!bytes.empty()) {
    FLOTILLA_ASSIGN_OR_RETURN(const std::size_t moved,
                              pace.run([&](const Patience& patience) { return stream.write_some(bytes, patience); }));
    if (moved == 0) return false;
    sent = true;
    bytes = bytes.subspan(moved);
  }
  return true;
}

HttpAnswer answer_of(const http::response<http::buffer_body>& message) {
  HttpAnswer answer;
  answer.status = static_cast<int>(message.result_int());
  for (const auto& field : message) {
    std::string name(field.name_string());
    std::transform(name.begin(), name.end(), name.begin(),
                   [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; });
    answer.headers.emplace_back(std::move(name), std::string(field.value()));
  }
  return answer;
}

struct Reading {
  HttpAnswer answer;
  bool reusable = false;
};

// One answer, and the interim ones before it.
class AnswerReader {
 public:
  AnswerReader(NetStream& stream, Pace& pace, bool without_body)
      : stream_(stream), pace_(pace), without_body_(without_body) {}

  Result<Reading> read(const BodySink& sink) {
    while (true) {
      http::response_parser<http::buffer_body> parser;
      parser.header_limit(kHeaderBytesMax);
      parser.body_limit(std::numeric_limits<std::uint64_t>::max());
      parser.eager(true);
      parser.skip(without_body_);
      FLOTILLA_ASSIGN_OR_RETURN(HttpAnswer answer, read_one(parser, sink));
      if (answer.status / 100 == 1) continue;
      return Reading{std::move(answer), parser.keep_alive() && buffer_.size() == 0};
    }
  }

 private:
  Result<HttpAnswer> read_one(http::response_parser<http::buffer_body>& parser, const BodySink& sink) {
    std::optional<HttpAnswer> answer;
    while (!parser.is_done()) {
      auto& body = parser.get().body();
      body.data = piece_.data();
      body.size = piece_.size();
      body.more = true;
      beast::error_code error;
      if (at_end_ && buffer_.size() == 0) {
        if (!parser.got_some()) return unavailable("the server left without an answer");
        parser.put_eof(error);
      } else {
        buffer_.consume(parser.put(buffer_.data(), error));
      }
      if (error == http::error::need_buffer) error = {};
      const bool wants_more = error == http::error::need_more;
      if (error == http::error::partial_message) return unavailable("the answer ends too early");
      if (error && !wants_more) return internal_error(fmt::format("not an answer of HTTP: {}", error.message()));
      if (parser.is_header_done() && !answer) answer = answer_of(parser.get());
      const std::size_t size = piece_.size() - body.size;
      if (size > 0) FLOTILLA_RETURN_IF_ERROR(sink(*answer, {piece_.data(), size}));
      if (!parser.is_done() && (wants_more || buffer_.size() == 0)) {
        if (at_end_) return unavailable("the answer ends too early");
        FLOTILLA_RETURN_IF_ERROR(fill());
      }
    }
    return *std::move(answer);
  }

  Status fill() {
    const auto space = buffer_.prepare(kReadBytes);
    FLOTILLA_ASSIGN_OR_RETURN(const std::size_t got, pace_.run([&](const Patience& patience) {
      return stream_.read_some({static_cast<std::uint8_t*>(space.data()), space.size()}, patience);
    }));
    buffer_.commit(got);
    at_end_ = got == 0;
    return ok_status();
  }

  NetStream& stream_;
  Pace& pace_;
  const bool without_body_;
  beast::flat_buffer buffer_{std::numeric_limits<std::size_t>::max()};
  std::array<std::uint8_t, kReadBytes> piece_;
  bool at_end_ = false;
};

std::string proxy_authorization(const Url& proxy) {
  return "Basic " + base64(as_bytes(fmt::format("{}:{}", proxy.user, proxy.password)));
}

}  // namespace

std::string_view HttpAnswer::header(std::string_view name) const {
  for (const auto& [key, value] : headers) {
    if (key == name) return value;
  }
  return {};
}

HttpClient::HttpClient(TlsTrust trust, Environment environment, HttpTimes times)
    : trust_(std::move(trust)), environment_(std::move(environment)), times_(times) {}

HttpClient::~HttpClient() = default;

Result<std::shared_ptr<const TlsContext>> HttpClient::tls() {
  const std::lock_guard lock(mutex_);
  if (tls_ == nullptr) {
    FLOTILLA_ASSIGN_OR_RETURN(tls_, TlsContext::create(trust_));
  }
  return tls_;
}

std::optional<NetStream> HttpClient::take_idle(const std::string& server) {
  const std::lock_guard lock(mutex_);
  std::erase_if(idle_, [&](const Idle& each) { return Clock::now() - each.since > times_.idle; });
  for (std::size_t i = idle_.size(); i-- > 0;) {
    if (idle_[i].server != server) continue;
    NetStream stream = std::move(idle_[i].stream);
    idle_.erase(idle_.begin() + static_cast<std::ptrdiff_t>(i));
    if (stream.is_idle()) return stream;
  }
  return std::nullopt;
}

void HttpClient::keep(const std::string& server, NetStream stream) {
  const std::lock_guard lock(mutex_);
  if (idle_.size() == kIdleMax) idle_.erase(idle_.begin());
  idle_.push_back({server, std::move(stream), Clock::now()});
}

Result<NetStream> HttpClient::connect(const Url& server, const std::optional<Url>& proxy, const StopEvent& stop) {
  const Patience patience{Clock::now() + times_.connect, &stop};
  const Url& first = proxy ? *proxy : server;
  FLOTILLA_ASSIGN_OR_RETURN(
      NetStream stream,
      NetStream::connect(first.host, first.port, patience).with_context(proxy ? "proxy" : server.host_and_port()));
  if (!server.tls) return stream;
  if (proxy) {
    HttpRequest tunnel{"CONNECT", server.host_and_port(), {{"host", server.host_and_port()}}, {}};
    if (!proxy->user.empty()) tunnel.headers.emplace_back("proxy-authorization", proxy_authorization(*proxy));
    FLOTILLA_ASSIGN_OR_RETURN(const std::string head, head_text(tunnel, tunnel.target));
    HttpTimes times = times_;
    times.window = times_.connect;
    Pace pace(times, stop);
    bool sent = false;
    FLOTILLA_RETURN_IF_ERROR(write_all(stream, as_bytes(head), pace, sent).status());
    const auto reader = std::make_unique<AnswerReader>(stream, pace, true);
    FLOTILLA_ASSIGN_OR_RETURN(
        const Reading reading,
        reader->read([](const HttpAnswer&, ByteSpan) { return ok_status(); }).with_context("proxy"));
    const int status = reading.answer.status;
    if (status == 407) return permission_denied(fmt::format("proxy {}: wants a user and a password", proxy->text()));
    if (status / 100 != 2) {
      return unavailable(fmt::format("proxy {}: answered {} to a tunnel to {}", proxy->text(), status, tunnel.target));
    }
  }
  FLOTILLA_ASSIGN_OR_RETURN(const auto context, tls());
  FLOTILLA_RETURN_IF_ERROR(stream.start_tls(*context, server.host, patience).with_context(server.host_and_port()));
  return stream;
}

Result<HttpAnswer> HttpClient::exchange(const Url& server, const HttpRequest& request, const BodySink& sink,
                                        const StopEvent& stop, bool& sent) {
  FLOTILLA_ASSIGN_OR_RETURN(const auto proxy, proxy_for(server, environment_));
  const bool absolute = proxy && !server.tls;
  FLOTILLA_ASSIGN_OR_RETURN(
      std::string head,
      head_text(request, absolute ? fmt::format("http://{}{}", server.authority(), request.target) : request.target));
  if (absolute && !proxy->user.empty()) {
    head.insert(head.size() - 2, fmt::format("proxy-authorization: {}\r\n", proxy_authorization(*proxy)));
  }
  const std::string name = fmt::format("{}{}", server.tls ? "https://" : "http://", server.host_and_port());
  std::optional<NetStream> stream = take_idle(name);
  if (!stream) {
    FLOTILLA_ASSIGN_OR_RETURN(stream, connect(server, proxy, stop));
  }
  Pace pace(times_, stop);
  // A server that refuses may say so and leave before it has read everything: its answer counts, if there is one.
  auto whole = write_all(*stream, as_bytes(head), pace, sent);
  if (whole.ok() && *whole) whole = write_all(*stream, request.body, pace, sent);
  const bool broken = whole.status().code() == StatusCode::kUnavailable;
  if (!whole.ok() && !broken) return std::move(whole).status();
  pace.restart(request.answer_within);
  const auto reader = std::make_unique<AnswerReader>(*stream, pace, request.method == "HEAD");
  auto reading = reader->read(sink);
  if (!reading.ok()) return broken ? std::move(whole).status() : std::move(reading).status();
  if (reading->reusable && whole.ok() && *whole) keep(name, *std::move(stream));
  return std::move(reading->answer);
}

}  // namespace flotilla
