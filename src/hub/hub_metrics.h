#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <utility>

namespace flotilla {

// What a hub server counts, in Prometheus' text form (version 0.0.4). Thread safe.
class HubMetrics {
 public:
  void request_ended(std::string_view operation, int status, std::chrono::nanoseconds duration);
  void refused(std::string_view code);
  void received(std::uint64_t bytes);
  void sent(std::uint64_t bytes);
  void connections_changed(int by);
  void connection_refused();
  void waiting_changed(int by);
  // With the bytes in use by owner.
  std::string text(const std::map<std::string, std::uint64_t>& owners) const;

 private:
  mutable std::mutex mutex_;  // guards all
  std::map<std::pair<std::string, int>, std::uint64_t> requests_;
  std::map<std::string, std::uint64_t> refused_;
  double seconds_ = 0;
  std::uint64_t ended_ = 0;
  std::uint64_t received_ = 0;
  std::uint64_t sent_ = 0;
  std::uint64_t connections_refused_ = 0;
  std::int64_t connections_ = 0;
  std::int64_t waiting_ = 0;
};

}  // namespace flotilla
