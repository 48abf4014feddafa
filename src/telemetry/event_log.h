#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "base/clock.h"
#include "base/status.h"
#include "telemetry/event_sink.h"
#include "telemetry/segment_delivery.h"

namespace flotilla {

struct EventLogOptions {
  std::filesystem::path folder = {};        // of this writer alone; made when missing
  std::string writer = {};                  // "learner", or the worker's id
  std::uint64_t segment_bytes = 1 << 20;    // a segment is closed before it would be larger
  std::chrono::nanoseconds segment_age{0};  // and when it is this old; 0: at any age
  std::uint64_t folder_bytes = 256 << 20;   // oldest delivered segments go when the folder is larger
  DeliverSegment deliver = {};              // where closed segments go; empty: nowhere
};

// Writes events to a folder of segments (docs/formats/events.md), on a thread of its own: emit() only queues. After a
// kill -9 at most the last line is torn; the next life goes on with the next segment and the next sequence number.
// Events that it cannot keep (queue full, no space on the disk, folder full of undelivered segments) are counted, and a
// log.lost event says so once writing works again. Thread safe.
class EventLog final : public EventSink {
 public:
  // failed_precondition when another process has the folder.
  static Result<std::unique_ptr<EventLog>> open(EventLogOptions options, const Clock& clock = system_clock());
  // Writes what is queued, closes the segment and tries to deliver what is left, once.
  ~EventLog() override;
  EventLog(const EventLog&) = delete;
  EventLog& operator=(const EventLog&) = delete;

  void emit(Event event) override;
  // Returns when all events emitted before are on the disk, synced. The error says why some since the last flush are
  // not. One caller at a time.
  Status flush();

 private:
  struct Pending {
    Event event;
    std::chrono::milliseconds time;
    std::chrono::nanoseconds monotonic;
  };
  class Segments;

  EventLog(std::unique_ptr<Segments> segments, const Clock& clock);
  void work();

  const Clock& clock_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::condition_variable flushed_;
  std::deque<Pending> queue_;           // guarded by mutex_
  std::uint64_t lost_ = 0;              // did not fit the queue; guarded by mutex_
  std::uint64_t flushes_wanted_ = 0;    // guarded by mutex_
  std::uint64_t flushes_done_ = 0;      // guarded by mutex_
  Status flush_status_;                 // of the last flush; guarded by mutex_
  bool stopping_ = false;               // guarded by mutex_
  std::unique_ptr<Segments> segments_;  // the thread's own
  std::jthread thread_;
};

}  // namespace flotilla
