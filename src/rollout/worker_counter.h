#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string_view>

#include "base/ids.h"
#include "base/status.h"
#include "sync/signing.h"

namespace flotilla {

// Hex of the first 16 bytes of SHA-256 of the public key: the beginning of its fingerprint.
WorkerId worker_id(const PublicKey& key);

// The next counter of a worker in a run, kept in a small file, so that a worker that begins again never uses one twice,
// whatever moment it died at. While the object lives, no other process can have the same worker and run. One thread.
class WorkerCounter {
 public:
  // The file is <folder>/<owner>/<run>/<worker>.json (docs/formats/worker.md). failed_precondition when another process
  // has it; data_loss when it cannot be understood.
  static Result<std::unique_ptr<WorkerCounter>> open(const std::filesystem::path& folder, std::string_view run,
                                                     const WorkerId& worker);
  ~WorkerCounter();
  WorkerCounter(const WorkerCounter&) = delete;
  WorkerCounter& operator=(const WorkerCounter&) = delete;

  std::uint64_t next() const { return next_; }
  // Takes `count` counters; returns the first when the file that leaves them out is on the disk.
  Result<std::uint64_t> take(std::uint64_t count);

 private:
  WorkerCounter(std::filesystem::path path, std::string run, WorkerId worker, int lock)
      : path_(std::move(path)), run_(std::move(run)), worker_(std::move(worker)), lock_(lock) {}
  Status load();

  const std::filesystem::path path_;
  const std::string run_;
  const WorkerId worker_;
  const int lock_;  // file descriptor
  std::uint64_t next_ = 0;
};

}  // namespace flotilla
