#pragma once

#include <stop_token>
#include <thread>

namespace flotilla {

// Turns SIGINT and SIGTERM into a stop request. A second signal ends the program at once. Make it before any other
// thread: threads that exist earlier could still take the signals. One object a process.
class StopSignals {
 public:
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  std::stop_token token() const { return source_.get_token(); }
  bool stopped() const { return source_.stop_requested(); }
  void wait() const;  // until one came

 private:
  void watch();
  std::stop_source source_;
  std::jthread thread_;
};

}  // namespace flotilla
