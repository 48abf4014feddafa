#include "hub/hub_metrics.h"

#include <fmt/format.h>

namespace flotilla {
namespace {

std::string family(std::string_view name, std::string_view type, std::string_view help) {
  return fmt::format("# HELP {0} {2}\n# TYPE {0} {1}\n", name, type, help);
}

}  // namespace

void HubMetrics::request_ended(std::string_view operation, int status, std::chrono::nanoseconds duration) {
  const std::lock_guard lock(mutex_);
  ++requests_[{std::string(operation), status}];
  ++ended_;
  seconds_ += std::chrono::duration<double>(duration).count();
}

void HubMetrics::refused(std::string_view code) {
  const std::lock_guard lock(mutex_);
  ++refused_[std::string(code)];
}

void HubMetrics::received(std::uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  received_ += bytes;
}

void HubMetrics::sent(std::uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  sent_ += bytes;
}

void HubMetrics::connections_changed(int by) {
  const std::lock_guard lock(mutex_);
  connections_ += by;
}

void HubMetrics::connection_refused() {
  const std::lock_guard lock(mutex_);
  ++connections_refused_;
}

void HubMetrics::waiting_changed(int by) {
  const std::lock_guard lock(mutex_);
  waiting_ += by;
}

std::string HubMetrics::text(const std::map<std::string, std::uint64_t>& owners) const {
  const std::lock_guard lock(mutex_);
  std::string out =
      family("flotilla_hub_requests_total", "counter", "Requests that were admitted, by operation and status.");
  for (const auto& [which, count] : requests_) {
    out += fmt::format("flotilla_hub_requests_total{{operation=\"{}\",status=\"{}\"}} {}\n", which.first, which.second,
                       count);
  }
  out += family("flotilla_hub_refused_total", "counter", "Requests that were refused, by S3's code.");
  for (const auto& [code, count] : refused_)
    out += fmt::format("flotilla_hub_refused_total{{code=\"{}\"}} {}\n", code, count);
  out += family("flotilla_hub_owner_bytes", "gauge", "Bytes of objects and of parts of uploads, by owner.");
  for (const auto& [owner, bytes] : owners)
    out += fmt::format("flotilla_hub_owner_bytes{{owner=\"{}\"}} {}\n", owner, bytes);
  const auto one = [&](std::string_view name, std::string_view type, std::string_view help, auto value) {
    out += family(name, type, help) + fmt::format("{} {}\n", name, value);
  };
  one("flotilla_hub_received_bytes_total", "counter", "Bytes of bodies received.", received_);
  one("flotilla_hub_sent_bytes_total", "counter", "Bytes of bodies sent.", sent_);
  one("flotilla_hub_connections", "gauge", "Open connections.", connections_);
  one("flotilla_hub_connections_refused_total", "counter", "Connections closed at once: there were too many.",
      connections_refused_);
  one("flotilla_hub_waiting", "gauge", "Requests that wait for an object to change.", waiting_);
  out += family("flotilla_hub_request_seconds", "summary", "From a request's head to its whole answer.");
  out += fmt::format("flotilla_hub_request_seconds_sum {}\nflotilla_hub_request_seconds_count {}\n", seconds_, ended_);
  return out;
}

}  // namespace flotilla
