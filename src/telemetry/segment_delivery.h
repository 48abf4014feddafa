#pragma once

#include <condition_variable>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <mutex>
#include <thread>

#include "base/bytes.h"
#include "base/status.h"

namespace flotilla {

// Takes one closed segment to the hub. already_exists counts as done: an earlier life of the writer delivered it.
using DeliverSegment = std::function<Status(std::uint64_t number, ByteSpan bytes)>;

// Delivers closed segments in their order on a thread of its own, each at least once. A failure is tried again after 1
// s, doubling to 60 s, with jitter, and is logged. How far it came is kept in the folder's file `delivered`, so that a
// restart goes on from there. Thread safe.
class SegmentDelivery {
 public:
  // Segments below `closed` are closed already.
  SegmentDelivery(std::filesystem::path folder, std::uint64_t closed, DeliverSegment deliver);
  // Tries the undelivered ones once more, up to the first failure.
  ~SegmentDelivery();
  SegmentDelivery(const SegmentDelivery&) = delete;
  SegmentDelivery& operator=(const SegmentDelivery&) = delete;

  // Segments below `end` are closed.
  void close_below(std::uint64_t end);
  // Segments below this number are delivered.
  std::uint64_t delivered() const;

 private:
  void work();
  Status deliver_segment(std::uint64_t number) const;

  const std::filesystem::path folder_;
  const DeliverSegment deliver_;
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::uint64_t closed_;     // guarded by mutex_
  std::uint64_t delivered_;  // guarded by mutex_
  bool stopping_ = false;    // guarded by mutex_
  std::jthread thread_;
};

}  // namespace flotilla
