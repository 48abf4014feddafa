#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

namespace flotilla {

// Processors that this process may run on; at least 1.
int core_count();

// A fixed team of threads that share loops. The caller takes part, so a pool of one thread starts none. Each thread
// takes pieces of its own part of the range first, so that what loop after loop does with the same part of the data
// stays in the caches of one core; then what the others have left, but for the last piece of a thread that has begun.
// Pieces are claimed one by one: a thread that the system puts aside delays the piece that it is at and the last one of
// its part, no more. Idle threads watch for a tenth of a millisecond and then sleep.
class ThreadPool {
 public:
  // threads >= 1, the caller included.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return static_cast<int>(workers_.size()) + 1; }

  // How many of them take part in the loops from now on: 1 to threads(), at first all; the others sleep. Between loops
  // only.
  void set_active(int threads);
  int active() const { return active_; }

  // Runs body(piece, thread) for each piece in [0, pieces), thread in [0, active()), and returns when all are done.
  // One caller at a time; body must not throw and must not call run again.
  void run(std::int64_t pieces, const std::function<void(std::int64_t piece, int thread)>& body);

 private:
  struct Share;
  struct Shared;
  void work(int thread);
  std::unique_ptr<Shared> shared_;
  int active_;
  std::vector<std::jthread> workers_;
};

}  // namespace flotilla
