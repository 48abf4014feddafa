#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>

#include <nlohmann/json.hpp>

namespace flotilla {

// What people ask of a running learner. Thread safe: the socket and signals write, the loop reads.
class LearnerControl {
 public:
  enum class Request {
    kNone,
    kFinish,  // end the run: publish, tell the fleet that it is finished
    kLeave,   // end the process soon: checkpoint and go, the run may go on later
  };

  // A later kLeave wins over kFinish; nothing takes a request back.
  void ask(Request request);
  void pause(bool paused);

  Request request() const;
  bool paused() const;
  // Returns after `time`, or as soon as something was asked, or wake() called, since the last return. One thread waits.
  void wait(std::chrono::nanoseconds time);

  // Ends wait(), also the next one: something else has happened that its caller looks at.
  void wake();

  // What `status` answers.
  void set_status(nlohmann::json status);
  nlohmann::json status() const;

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  Request request_ = Request::kNone;  // the rest is guarded by mutex_
  bool paused_ = false;
  std::uint64_t changes_ = 0;
  std::uint64_t seen_ = 0;
  nlohmann::json status_ = nlohmann::json::object();
};

}  // namespace flotilla
