#include "base/clock.h"

#include <ctime>

#include <fmt/format.h>

namespace flotilla {
namespace {

class SystemClock final : public Clock {
 public:
  std::chrono::nanoseconds monotonic() const override { return std::chrono::steady_clock::now().time_since_epoch(); }
  std::chrono::milliseconds wall() const override {
    return std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::system_clock::now().time_since_epoch());
  }
};

}  // namespace

const Clock& system_clock() {
  static const SystemClock clock;
  return clock;
}

std::string utc_text(std::chrono::milliseconds wall) {
  const auto seconds = std::chrono::floor<std::chrono::seconds>(wall);
  const std::time_t time = seconds.count();
  std::tm parts{};
  gmtime_r(&time, &parts);
  return fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:03}Z", parts.tm_year + 1900, parts.tm_mon + 1,
                     parts.tm_mday, parts.tm_hour, parts.tm_min, parts.tm_sec, (wall - seconds).count());
}

}  // namespace flotilla
