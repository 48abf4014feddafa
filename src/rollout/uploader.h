#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

#include <nlohmann/json.hpp>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/ids.h"
#include "base/status.h"
#include "rollout/retry.h"
#include "store/object_store.h"
#include "telemetry/event_sink.h"

namespace flotilla {

struct Upload {
  GroupId group;
  std::uint64_t counter = 0;
  std::string key;
  Bytes bytes;
  std::chrono::nanoseconds ended{0};  // Clock::monotonic() at the end of the group
};

// Brings groups to the hub on a thread of its own, oldest first, and the worker's status at most once an interval. A
// key that exists already counts as done: a group is written once, and an answer may have been lost. Thread safe.
class Uploader {
 public:
  struct Options {
    std::string status_key;
    std::chrono::milliseconds status_interval{60'000};
    RetryPolicy retry;
    std::uint64_t seed = 0;  // of the pauses' jitter
    // Both optional, called on the uploader's thread: a group is on the hub; a status is about to be written.
    std::function<void(const Upload&)> on_upload = nullptr;
    std::function<void(nlohmann::json&)> complete_status = nullptr;
  };
  Uploader(ObjectStore& store, Options options, EventSink& events, const Clock& clock);
  // Ends at once: what waits is dropped.
  ~Uploader();
  Uploader(const Uploader&) = delete;
  Uploader& operator=(const Uploader&) = delete;

  void add(Upload upload);
  // What the next status object will say; `time_ms` is added.
  void set_status(nlohmann::json status);

  std::int64_t waiting() const;
  std::int64_t uploaded() const;
  // The error of the upload that was given up. No more are made after it.
  Status status() const;
  // Waits until at most `left` uploads wait, one is given up, the time is over or a stop is requested. True when at
  // most `left` wait.
  bool wait_until(std::int64_t left, std::chrono::milliseconds time, const std::stop_token& stop = {});

 private:
  void work(const std::stop_token& stop);
  void upload(const Upload& upload, const std::stop_token& stop);
  void put_status();

  ObjectStore& store_;
  const Options options_;
  EventSink& events_;
  const Clock& clock_;

  mutable std::mutex mutex_;  // for all below
  std::condition_variable_any changed_;
  std::deque<Upload> queue_;  // the front is under way
  nlohmann::json status_object_;
  std::int64_t uploaded_ = 0;
  Status failure_;

  std::jthread thread_;
};

}  // namespace flotilla
