#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <stop_token>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "rollout/claim_book.h"
#include "rollout/retry.h"
#include "store/object_store.h"
#include "sync/signing.h"
#include "telemetry/event_sink.h"

namespace flotilla {

// Keeps a worker in tasks: does what its ClaimBook asks for on a thread of its own, ahead of the sweeps, and keeps the
// book in a file. Emits worker.claim events. Thread safe.
class ClaimKeeper {
 public:
  struct Options {
    HubLayout layout;
    std::shared_ptr<const SigningKey> key;  // the worker's
    TaskOrder order;
    std::chrono::nanoseconds lease{0};
    std::filesystem::path file;  // docs/formats/claims.md
    std::function<std::string(std::uint64_t counter, Version)> group_key;
    RetryPolicy retry;
    std::uint64_t seed = 0;
  };
  // data_loss when the file cannot be understood.
  static Result<std::unique_ptr<ClaimKeeper>> open(ObjectStore& store, Options options, EventSink& events,
                                                   const Clock& clock);
  // Waits for the operation that is under way.
  ~ClaimKeeper();
  ClaimKeeper(const ClaimKeeper&) = delete;
  ClaimKeeper& operator=(const ClaimKeeper&) = delete;

  // Waits until `wanted` tasks can be taken, or all that a worker may hold, for `time` at most. From then on so many
  // are kept ready. True when there is one.
  bool wait_for(std::int64_t wanted, std::chrono::milliseconds time, const std::stop_token& stop);
  // ClaimBook::take, made and uploaded. What made() says is on the disk when it returns.
  std::vector<std::uint64_t> take(std::int64_t count);
  Status made(std::uint64_t counter, Version version);
  void uploaded(std::uint64_t counter);
  nlohmann::json held() const;
  // The error that ended the claiming.
  Status status() const;

 private:
  ClaimKeeper(ObjectStore& store, Options options, EventSink& events, const Clock& clock);
  void work(const std::stop_token& stop);
  Result<ClaimAnswer> perform(const ClaimCall& call, const std::stop_token& stop);
  Status save();  // with mutex_ held

  ObjectStore& store_;
  const Options options_;
  EventSink& events_;
  const Clock& clock_;
  Retrier retrier_;  // of the thread below

  mutable std::mutex mutex_;  // for all below
  std::condition_variable_any changed_;
  ClaimBook book_;
  std::uint64_t saved_ = 0;  // revision
  std::int64_t wanted_ = 0;
  bool ready_ = false;  // the book asks for nothing
  std::int64_t requests_ = 0;
  Status failure_;

  std::jthread thread_;
};

}  // namespace flotilla
