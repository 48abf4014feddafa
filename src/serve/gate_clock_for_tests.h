#pragma once

#include <atomic>
#include <thread>

#include "base/clock.h"

namespace flotilla {

// The system's time, for which all threads but its maker's wait until the gate is open: so a GenerationService stands
// still between two steps.
class GateClock final : public Clock {
 public:
  std::chrono::nanoseconds monotonic() const override {
    if (std::this_thread::get_id() == maker_) {
      note(maker_asked_);
    } else {
      note(other_asked_);
      open_.wait(false);
    }
    return system_clock().monotonic();
  }
  std::chrono::milliseconds wall() const override { return system_clock().wall(); }

  void open() { note(open_); }
  // Return when the time has been asked for: by the maker's thread, as a service's stop does while it holds its lock;
  // or by another, as a service does that has work.
  void await_maker() const { maker_asked_.wait(false); }
  void await_other() const { other_asked_.wait(false); }

 private:
  static void note(std::atomic<bool>& flag) {
    flag = true;
    flag.notify_all();
  }

  const std::thread::id maker_ = std::this_thread::get_id();
  mutable std::atomic<bool> maker_asked_ = false, other_asked_ = false, open_ = false;
};

}  // namespace flotilla
