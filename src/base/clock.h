#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace flotilla {

// Time as an argument: state machines and loops take a Clock, so that tests run years in a second. Thread safe.
class Clock {
 public:
  virtual ~Clock() = default;
  // Never goes back; the origin is arbitrary.
  virtual std::chrono::nanoseconds monotonic() const = 0;
  // Since 1970-01-01 UTC; may jump. For people and records only, never for deadlines.
  virtual std::chrono::milliseconds wall() const = 0;
};

const Clock& system_clock();

// A clock that moves only when told to.
class ManualClock final : public Clock {
 public:
  std::chrono::nanoseconds monotonic() const override { return now_; }
  std::chrono::milliseconds wall() const override {
    return std::chrono::duration_cast<std::chrono::milliseconds>(now_);
  }
  void advance(std::chrono::nanoseconds by) { now_ += by; }

 private:
  std::chrono::nanoseconds now_{0};
};

// "2026-01-31T12:00:00.123Z"
std::string utc_text(std::chrono::milliseconds wall);

}  // namespace flotilla
