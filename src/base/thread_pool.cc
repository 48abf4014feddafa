#include "base/thread_pool.h"

#include <atomic>

#include "base/status.h"

namespace flotilla {

struct ThreadPool::Shared {
  std::mutex mutex;
  std::condition_variable wake;
  std::condition_variable done;
  const std::function<void(std::int64_t, int)>* body = nullptr;  // guarded by mutex; null between loops
  std::int64_t pieces = 0;
  std::atomic<std::int64_t> next{0};
  std::uint64_t epoch = 0;  // guarded by mutex
  int active = 0;           // helpers inside the present loop; guarded by mutex
  bool stopping = false;
};

ThreadPool::ThreadPool(int threads) : shared_(std::make_unique<Shared>()) {
  FLOTILLA_CHECK(threads >= 1);
  workers_.reserve(static_cast<std::size_t>(threads - 1));
  for (int thread = 1; thread < threads; ++thread) workers_.emplace_back([this, thread] { work(thread); });
}

ThreadPool::~ThreadPool() {
  {
    const std::lock_guard lock(shared_->mutex);
    shared_->stopping = true;
  }
  shared_->wake.notify_all();
}

void ThreadPool::run(std::int64_t pieces, const std::function<void(std::int64_t, int)>& body) {
  Shared& s = *shared_;
  if (workers_.empty() || pieces <= 1) {
    for (std::int64_t piece = 0; piece < pieces; ++piece) body(piece, 0);
    return;
  }
  {
    const std::lock_guard lock(s.mutex);
    s.body = &body;
    s.pieces = pieces;
    s.next.store(0, std::memory_order_relaxed);
    ++s.epoch;
  }
  s.wake.notify_all();
  for (std::int64_t piece; (piece = s.next.fetch_add(1, std::memory_order_relaxed)) < pieces;) body(piece, 0);
  std::unique_lock lock(s.mutex);
  // Helpers that have not woken yet find no body and go back to sleep: only those inside are waited for.
  s.body = nullptr;
  s.done.wait(lock, [&] { return s.active == 0; });
}

void ThreadPool::work(int thread) {
  Shared& s = *shared_;
  std::uint64_t seen = 0;
  std::unique_lock lock(s.mutex);
  for (;;) {
    s.wake.wait(lock, [&] { return s.stopping || (s.body != nullptr && s.epoch != seen); });
    if (s.stopping) return;
    seen = s.epoch;
    const auto* body = s.body;
    const std::int64_t pieces = s.pieces;
    ++s.active;
    lock.unlock();
    for (std::int64_t piece; (piece = s.next.fetch_add(1, std::memory_order_relaxed)) < pieces;) (*body)(piece, thread);
    lock.lock();
    if (--s.active == 0) s.done.notify_one();
  }
}

}  // namespace flotilla
