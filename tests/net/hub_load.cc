// Many workers at once, as one hub server sees them: each waits for `head`, fetches every version, and now and then
// uploads a group and a status, with a token and two connections of its own. Everything on one thread.
//
//   hub_load STATE_FOLDER PORT [--tls] [--workers N] [--seconds S] [...]
//
// Makes the tokens in the hub's state folder, ramps up, and prints one JSON object about the time after that.
#include <utility>  // Boost 1.74's awaitable.hpp uses std::exchange without it

#if defined(__clang__) && !defined(BOOST_ASIO_HAS_CO_AWAIT)
#define BOOST_ASIO_HAS_CO_AWAIT 1  // Boost 1.74 knows coroutines of Clang before they were standard only
#endif
#include <fmt/format.h>
#include <CLI/CLI.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <boost/beast/ssl.hpp>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/hashing.h"
#include "base/philox.h"
#include "hub/token_store.h"
#include "store/sigv4.h"
#include "sync/hub_layout.h"

namespace flotilla {
namespace {

namespace net = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
namespace ssl = net::ssl;
using boost::system::error_code;
using net::ip::tcp;
using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

struct Options {
  std::string state;
  std::uint16_t port = 0;
  bool tls = false;
  int workers = 1000;
  double ramp_s = 30;
  double seconds = 120;
  double version_every_s = 30;
  double upload_every_s = 60;
  std::size_t delta_bytes = 700'000;
  std::size_t manifest_bytes = 4'000;
  std::size_t group_bytes = 48'000;
  std::size_t status_bytes = 600;
  double burst_s = 0;  // afterwards, small reads as fast as they go
  int burst_connections = 64;
};

auto into(error_code& error) { return net::redirect_error(net::use_awaitable, error); }

// What was measured, by kind of request.
class Figures {
 public:
  void add(const std::string& kind, Clock::duration time, std::size_t received, std::size_t sent) {
    Kind& one = kinds_[kind];
    one.ms.push_back(std::chrono::duration<float, std::milli>(time).count());
    one.received += received;
    one.sent += sent;
  }
  void failed(const std::string& what) { ++failures_[what]; }
  void restart() {
    kinds_.clear();
    failures_.clear();
    begin_ = Clock::now();
  }

  nlohmann::json json() {
    const double seconds = Seconds(Clock::now() - begin_).count();
    nlohmann::json result = {{"seconds", seconds}, {"failures", failures_}, {"kinds", nlohmann::json::object()}};
    for (auto& [name, kind] : kinds_) {
      std::sort(kind.ms.begin(), kind.ms.end());
      const auto at = [&](double share) {
        return kind.ms[static_cast<std::size_t>(share * static_cast<double>(kind.ms.size() - 1))];
      };
      result["kinds"][name] = {
          {"count", kind.ms.size()},   {"per_second", static_cast<double>(kind.ms.size()) / seconds},
          {"ms_50", at(0.5)},          {"ms_99", at(0.99)},
          {"ms_most", kind.ms.back()}, {"bytes_received", kind.received},
          {"bytes_sent", kind.sent}};
    }
    return result;
  }

 private:
  struct Kind {
    std::vector<float> ms;
    std::size_t received = 0;
    std::size_t sent = 0;
  };
  Clock::time_point begin_ = Clock::now();
  std::map<std::string, Kind> kinds_;
  std::map<std::string, int> failures_;
};

struct Answer {
  int status = 0;
  std::string etag;
  std::string text;  // of small ones
  std::size_t bytes = 0;
};

struct Shared {
  explicit Shared(Options given) : options(std::move(given)) {
    tls.set_verify_mode(ssl::verify_none);
    SSL_CTX_set_min_proto_version(tls.native_handle(), TLS1_3_VERSION);
  }
  const Options options;
  net::io_context io{1};
  ssl::context tls{ssl::context::tls_client};
  Figures figures;
  std::map<std::string, Clock::time_point> moved;  // when the write of this `head` began
  bool over = false;
};

// One connection that is kept, with the requests of one token.
class Connection {
 public:
  Connection(Shared& shared, AwsCredentials who) : shared_(shared), who_(std::move(who)) {}

  // Nothing when the connection failed; the next request makes another.
  net::awaitable<std::optional<Answer>> ask(std::string method, std::string path, std::string_view body = {},
                                            NamedValues headers = {}) {
    error_code error;
    if (!plain_ && !tls_) {
      co_await connect(error);
      if (error) co_return fail("connect", error);
    }
    SigV4Request request{method, path, {}, std::move(headers)};
    request.headers.emplace_back("host", "127.0.0.1");
    const auto now = std::chrono::floor<std::chrono::seconds>(std::chrono::system_clock::now());
    sign_request(request, who_, {now, "us-east-1"}, sha256(body).to_hex());
    std::string text = fmt::format("{} {} HTTP/1.1\r\n", method, request_target(request));
    for (const auto& [name, value] : request.headers) text += fmt::format("{}: {}\r\n", name, value);
    if (method == "PUT") text += fmt::format("content-length: {}\r\n", body.size());
    text += "\r\n";
    text += body;
    if (tls_) {
      co_await net::async_write(*tls_, net::buffer(text), into(error));
    } else {
      co_await net::async_write(*plain_, net::buffer(text), into(error));
    }
    if (error) co_return fail("write", error);
    Answer answer;
    http::response_parser<http::buffer_body> parser;
    parser.body_limit(std::numeric_limits<std::uint64_t>::max());
    parser.eager(true);
    static std::array<char, 65536> piece;  // nobody looks at it but for small answers
    while (!parser.is_done()) {
      parser.get().body().data = piece.data();
      parser.get().body().size = piece.size();
      parser.get().body().more = true;
      if (tls_) {
        co_await http::async_read_some(*tls_, buffer_, parser, into(error));
      } else {
        co_await http::async_read_some(*plain_, buffer_, parser, into(error));
      }
      if (error == http::error::need_buffer) error = {};
      if (error) co_return fail("read", error);
      const std::size_t size = piece.size() - parser.get().body().size;
      answer.bytes += size;
      if (answer.text.size() + size <= 4096) answer.text.append(piece.data(), size);
    }
    answer.status = static_cast<int>(parser.get().result_int());
    const auto tag = parser.get()[http::field::etag];
    answer.etag = std::string(tag.data(), tag.size());
    if (!parser.keep_alive()) close();
    co_return answer;
  }

 private:
  using Plain = beast::tcp_stream;
  using Tls = beast::ssl_stream<beast::tcp_stream>;

  net::awaitable<void> connect(error_code& error) {
    const tcp::endpoint server(net::ip::address_v4::loopback(), shared_.options.port);
    if (!shared_.options.tls) {
      plain_.emplace(shared_.io);
      co_await plain_->async_connect(server, into(error));
      if (!error) plain_->socket().set_option(tcp::no_delay(true), error);
      co_return;
    }
    tls_.emplace(shared_.io, shared_.tls);
    auto& below = beast::get_lowest_layer(*tls_);
    co_await below.async_connect(server, into(error));
    if (error) co_return;
    below.socket().set_option(tcp::no_delay(true), error);
    co_await tls_->async_handshake(ssl::stream_base::client, into(error));
  }

  std::optional<Answer> fail(std::string_view what, const error_code& error) {
    if (!shared_.over) shared_.figures.failed(fmt::format("{}: {}", what, error.message()));
    close();
    return std::nullopt;
  }

  void close() {
    plain_.reset();
    tls_.reset();
    buffer_.clear();
  }

  Shared& shared_;
  const AwsCredentials who_;
  std::optional<Plain> plain_;
  std::optional<Tls> tls_;
  beast::flat_buffer buffer_;
};

const HubLayout kLayout{"load/run"};

std::string path_of(const std::string& key) { return "/" + key; }

net::awaitable<void> pause(Shared& shared, double seconds) {
  net::steady_timer timer(shared.io);
  timer.expires_after(std::chrono::duration_cast<Clock::duration>(Seconds(seconds)));
  error_code ignored;
  co_await timer.async_wait(into(ignored));
}

// Asks, counts, and says whether the answer was `expected`.
net::awaitable<bool> counted(Shared& shared, Connection& connection, std::string kind, int expected, std::string method,
                             std::string key, std::string_view body = {}, NamedValues headers = {}) {
  const auto begin = Clock::now();
  const auto answer = co_await connection.ask(std::move(method), path_of(key), body, std::move(headers));
  if (!answer) co_return false;
  if (answer->status != expected) {
    shared.figures.failed(fmt::format("{}: {} {}", kind, answer->status, answer->text.substr(0, 200)));
    co_return false;
  }
  shared.figures.add(kind, Clock::now() - begin, answer->bytes, body.size());
  co_return true;
}

// Waits for `head`, and fetches what it names.
net::awaitable<void> follow(Shared& shared, AwsCredentials who, double begin_s) {
  co_await pause(shared, begin_s);
  Connection connection(shared, std::move(who));
  std::string tag;
  while (!shared.over) {
    NamedValues headers;
    if (!tag.empty()) headers = {{"if-none-match", tag}, {"prefer", "wait=20"}};
    const bool first = tag.empty();
    const auto head = co_await connection.ask("GET", path_of(kLayout.head()), {}, std::move(headers));
    if (!head || (head->status != 200 && head->status != 304)) {
      if (head) shared.figures.failed(fmt::format("head: {} {}", head->status, head->text.substr(0, 200)));
      co_await pause(shared, 1);
      continue;
    }
    if (head->status == 304) {
      shared.figures.add("head, nothing new", {}, 0, 0);
      continue;
    }
    tag = head->etag;
    const auto moved = shared.moved.find(head->text);
    if (moved == shared.moved.end()) continue;
    if (!first) shared.figures.add("head, moved", Clock::now() - moved->second, head->bytes, 0);
    const Version version(std::stoull(head->text));
    const bool whole = co_await counted(shared, connection, "manifest", 200, "GET", kLayout.manifest(version)) &&
                       co_await counted(shared, connection, "delta", 200, "GET", kLayout.delta(version));
    if (whole && !first) shared.figures.add("version there, after head moved", Clock::now() - moved->second, 0, 0);
  }
}

// A group and a status in turn, each once in `upload_every_s`, give or take a tenth.
net::awaitable<void> upload(Shared& shared, AwsCredentials who, std::string worker, std::uint64_t seed) {
  PhiloxStream random(seed, 1);
  const double every = shared.options.upload_every_s / 2;
  co_await pause(shared, shared.options.ramp_s + 2 * every * random.uniform());
  Connection connection(shared, std::move(who));
  const NamedValues absent = {{"if-none-match", "*"}};
  const std::string group(shared.options.group_bytes, 'x'), status(shared.options.status_bytes, 'x');
  for (int count = 0; !shared.over; ++count) {
    const GroupId id(fmt::format("{:032x}", count));
    co_await counted(shared, connection, "group", 200, "PUT", kLayout.rollout(Version(1), WorkerId(worker), id), group,
                     absent);
    co_await pause(shared, every * (0.9 + 0.2 * random.uniform()));
    co_await counted(shared, connection, "status", 200, "PUT", kLayout.worker_status(WorkerId(worker)), status);
    co_await pause(shared, every * (0.9 + 0.2 * random.uniform()));
  }
}

net::awaitable<void> publish(Shared& shared, AwsCredentials who) {
  Connection connection(shared, std::move(who));
  PhiloxStream random(1, 0);
  for (std::uint64_t version = 1; !shared.over; ++version) {
    std::string delta(shared.options.delta_bytes, '\0'), manifest(shared.options.manifest_bytes, 'm');
    for (char& c : delta) c = static_cast<char>(random.next_u32());
    bool done = co_await counted(shared, connection, "publish", 200, "PUT", kLayout.delta(Version(version)), delta);
    done = done &&
           co_await counted(shared, connection, "publish", 200, "PUT", kLayout.manifest(Version(version)), manifest);
    const std::string head = std::to_string(version);
    shared.moved[head] = Clock::now();
    done = done && co_await counted(shared, connection, "publish", 200, "PUT", kLayout.head(), head);
    co_await pause(shared, shared.options.version_every_s);
  }
}

net::awaitable<void> read_on(Shared& shared, AwsCredentials who) {
  Connection connection(shared, std::move(who));
  while (!shared.over) co_await counted(shared, connection, "small read", 200, "GET", kLayout.head());
}

net::awaitable<void> direct(Shared& shared, std::vector<AwsCredentials> tokens) {
  const Options& options = shared.options;
  co_await pause(shared, options.ramp_s + options.version_every_s / 2);
  shared.figures.restart();
  co_await pause(shared, options.seconds);
  nlohmann::json result = {{"steady", shared.figures.json()}};
  fmt::print("{}\n", result.dump());
  std::fflush(stdout);
  if (options.burst_s > 0) {
    for (int i = 0; i < options.burst_connections; ++i) {
      net::co_spawn(shared.io, read_on(shared, tokens[static_cast<std::size_t>(i) % tokens.size()]), net::detached);
    }
    shared.figures.restart();
    co_await pause(shared, options.burst_s);
    fmt::print("{}\n", nlohmann::json({{"burst", shared.figures.json()}}).dump());
    std::fflush(stdout);
  }
  shared.over = true;
  shared.io.stop();
}

Status load(const Options& options) {
  FLOTILLA_ASSIGN_OR_RETURN(const auto store, TokenStore::open(options.state));
  const auto issue = [&](HubRole role, const std::string& worker) -> Result<AwsCredentials> {
    FLOTILLA_ASSIGN_OR_RETURN(const auto issued, store->add({role, kLayout.prefix, worker}, {.requests_per_s = 1e5}));
    return AwsCredentials{issued.token.id, issued.secret, {}};
  };
  Shared shared(options);
  FLOTILLA_ASSIGN_OR_RETURN(const AwsCredentials learner, issue(HubRole::kLearner, ""));
  std::vector<AwsCredentials> tokens;
  for (int i = 0; i < options.workers; ++i) {
    const std::string worker = fmt::format("{:032x}", i + 1);
    FLOTILLA_ASSIGN_OR_RETURN(tokens.emplace_back(), issue(HubRole::kWorker, worker));
    const double begin = options.ramp_s * i / options.workers;
    const auto seed = static_cast<std::uint64_t>(i);
    net::co_spawn(shared.io, follow(shared, tokens.back(), begin), net::detached);
    net::co_spawn(shared.io, upload(shared, tokens.back(), worker, seed), net::detached);
  }
  net::co_spawn(shared.io, publish(shared, learner), net::detached);
  net::co_spawn(shared.io, direct(shared, tokens), net::detached);
  fmt::print("tokens made\n");
  std::fflush(stdout);
  shared.io.run();
  return ok_status();
}

}  // namespace
}  // namespace flotilla

int main(int count, char** arguments) {
  flotilla::Options options;
  CLI::App app("Many workers at once");
  app.add_option("STATE_FOLDER", options.state)->required();
  app.add_option("PORT", options.port)->required();
  app.add_flag("--tls", options.tls);
  app.add_option("--workers", options.workers);
  app.add_option("--ramp-s", options.ramp_s);
  app.add_option("--seconds", options.seconds);
  app.add_option("--version-every-s", options.version_every_s);
  app.add_option("--upload-every-s", options.upload_every_s);
  app.add_option("--delta-bytes", options.delta_bytes);
  app.add_option("--group-bytes", options.group_bytes);
  app.add_option("--burst-s", options.burst_s);
  CLI11_PARSE(app, count, arguments);
  const flotilla::Status status = flotilla::load(options);
  if (!status.ok()) fmt::print(stderr, "hub_load: {}\n", status.to_string());
  return status.ok() ? 0 : 1;
}
