#include "base/thread_pool.h"

#include <algorithm>
#include <atomic>
#include <chrono>

#include "base/status.h"

namespace flotilla {
namespace {

// How long a thread watches for what it waits for before it sleeps: about the time that waking it would take on a
// virtual machine whose processor has halted. Loops that follow each other closely then cost no system call, and nobody
// burns a processor for long.
constexpr std::chrono::microseconds kWatch{100};

// A wait that has begun. A pause of the processor takes some ten to hundred cycles, so the clock is asked now and then.
class Watch {
 public:
  // False when it is time to sleep.
  bool again() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
    if (++pauses_ % 16 != 0) return true;
    const auto now = std::chrono::steady_clock::now();
    if (pauses_ == 16) begin_ = now;
    return now - begin_ < kWatch;
  }

 private:
  int pauses_ = 0;
  std::chrono::steady_clock::time_point begin_;
};

// One word holds the state of the loop, so that joining it is one atomic step.
constexpr std::uint32_t kOpen = 1;    // helpers may still join
constexpr std::uint32_t kActive = 2;  // one helper inside; bits 1 to 15 count them
constexpr std::uint32_t kActiveMask = 0xfffe;
constexpr std::uint32_t kEpoch = 0x10000;  // number of the loop, bits 16 to 31

}  // namespace

// The pieces of a loop that one thread is to take first, on a cache line of their own.
struct alignas(64) ThreadPool::Share {
  std::atomic<std::int64_t> next{0};
  std::int64_t end = 0;
  std::atomic<bool> begun{false};  // by its thread
};

struct ThreadPool::Shared {
  explicit Shared(int threads) : active(threads), shares(static_cast<std::size_t>(threads)) {}

  std::atomic<std::uint32_t> state{0};
  std::atomic<int> active;  // threads that may join; the others sleep until it changes. 0: the pool ends
  // Of the present loop: written while no helper is active, read by active ones.
  const std::function<void(std::int64_t, int)>* body = nullptr;
  int takers = 0;
  std::vector<Share> shares;

  void divide(std::int64_t pieces) {
    for (std::int64_t t = 0; t < takers; ++t) {
      Share& share = shares[static_cast<std::size_t>(t)];
      share.next.store(pieces * t / takers, std::memory_order_relaxed);
      share.end = pieces * (t + 1) / takers;
      share.begun.store(false, std::memory_order_relaxed);
    }
  }

  void work_off(int thread) {
    shares[static_cast<std::size_t>(thread)].begun.store(true, std::memory_order_relaxed);
    for (int i = 0; i < takers; ++i) {
      Share& share = shares[static_cast<std::size_t>((thread + i) % takers)];
      // The last piece is left to the thread that is about to come to it: fetching the data from another core would
      // take longer, and again when the next loop fetches it back.
      for (std::int64_t left; (left = share.end - share.next.load(std::memory_order_relaxed)) > 0;) {
        if (i > 0 && left == 1 && share.begun.load(std::memory_order_relaxed)) break;
        const std::int64_t piece = share.next.fetch_add(1, std::memory_order_relaxed);
        if (piece < share.end) (*body)(piece, thread);
      }
    }
  }
};

int core_count() { return static_cast<int>(std::max(1u, std::thread::hardware_concurrency())); }

ThreadPool::ThreadPool(int threads) : active_(threads) {
  FLOTILLA_CHECK(threads >= 1);
  shared_ = std::make_unique<Shared>(threads);
  workers_.reserve(static_cast<std::size_t>(threads - 1));
  for (int thread = 1; thread < threads; ++thread) workers_.emplace_back([this, thread] { work(thread); });
}

ThreadPool::~ThreadPool() {
  shared_->active.store(0);
  shared_->active.notify_all();
  shared_->state.fetch_add(kEpoch);
  shared_->state.notify_all();
}

void ThreadPool::set_active(int threads) {
  FLOTILLA_CHECK(threads >= 1 && threads <= this->threads());
  if (threads == active_) return;
  active_ = threads;
  shared_->active.store(threads, std::memory_order_relaxed);  // seen by whoever sees the next loop
  shared_->active.notify_all();
}

void ThreadPool::run(std::int64_t pieces, const std::function<void(std::int64_t, int)>& body) {
  Shared& s = *shared_;
  if (active_ == 1 || pieces <= 1) {
    for (std::int64_t piece = 0; piece < pieces; ++piece) body(piece, 0);
    return;
  }
  s.body = &body;
  s.takers = active_;
  s.divide(pieces);
  s.state.store((s.state.load(std::memory_order_relaxed) + kEpoch) | kOpen, std::memory_order_release);
  s.state.notify_all();
  s.work_off(0);
  // Helpers that have not woken yet find the loop closed: only those inside are waited for.
  std::uint32_t state = s.state.fetch_and(~kOpen, std::memory_order_acq_rel) & ~kOpen;
  Watch watch;
  while ((state & kActiveMask) != 0) {
    if (!watch.again()) s.state.wait(state, std::memory_order_acquire);
    state = s.state.load(std::memory_order_acquire);
  }
}

void ThreadPool::work(int thread) {
  Shared& s = *shared_;
  std::uint32_t seen = 0;  // epoch of the last loop joined
  for (Watch watch;;) {
    // In this order: a state that is older than the stop makes the wait below return at once.
    std::uint32_t state = s.state.load(std::memory_order_acquire);
    const int active = s.active.load(std::memory_order_relaxed);
    if (active == 0) return;
    if (thread >= active) {
      s.active.wait(active, std::memory_order_relaxed);
      watch = {};
      continue;
    }
    const std::uint32_t epoch = state / kEpoch;
    if ((state & kOpen) == 0 || epoch == seen) {
      if (!watch.again()) {
        s.state.wait(state, std::memory_order_acquire);
        watch = {};
      }
      continue;
    }
    if (!s.state.compare_exchange_weak(state, state + kActive, std::memory_order_acq_rel)) continue;
    seen = epoch;
    s.work_off(thread);
    const std::uint32_t left = s.state.fetch_sub(kActive, std::memory_order_acq_rel) - kActive;
    if ((left & (kOpen | kActiveMask)) == 0) s.state.notify_all();
    watch = {};
  }
}

}  // namespace flotilla
