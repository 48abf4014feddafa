#include "benchmark/machine_limits.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <limits>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/median.h"
#include "base/thread_pool.h"
#include "benchmark/peak_loops.h"
#include "engine/page_buffer.h"

namespace flotilla {
namespace {

constexpr int kRuns = 7;
constexpr double kRunSeconds = 0.05;
constexpr std::int64_t kReadBytes = std::int64_t{512} << 20;  // beyond every cache

double seconds_of(const auto& work) {
  const auto begin = system_clock().monotonic();
  work();
  return std::chrono::duration<double>(system_clock().monotonic() - begin).count();
}

// Operations a second of all threads.
double speed(const PeakLoop& loop, ThreadPool& pool) {
  if (loop.run == nullptr) return 0;
  const auto run = [&](std::int64_t rounds) {
    return seconds_of([&] { pool.run(pool.threads(), [&](std::int64_t, int) { loop.run(rounds); }); });
  };
  std::int64_t rounds = 1 << 16;
  while (run(rounds) < kRunSeconds / 2) rounds *= 2;
  std::vector<double> speeds;
  for (int i = 0; i < kRuns; ++i) {
    const double operations = static_cast<double>(rounds * loop.operations_a_round) * pool.threads();
    speeds.push_back(operations / run(rounds));
  }
  return median(speeds);
}

// A number that two threads count up in turns, at best: another process between them says nothing of where they are.
double handoff_seconds() {
  constexpr int kHandoffs = 10'000;
  constexpr int kPatience = 10'000;  // looks before the processor is offered to the other thread, which may lack one
  double best = std::numeric_limits<double>::infinity();
  for (int i = 0; i < 2 * kRuns; ++i) {
    alignas(64) std::atomic<int> number{0};
    const auto count = [&number](int begin, int end) {
      for (int mine = begin; mine < end; mine += 2) {
        for (int looks = 0; number.load(std::memory_order_acquire) != mine; ++looks) {
          if (looks == kPatience) std::this_thread::yield(), looks = 0;
        }
        number.store(mine + 1, std::memory_order_release);
      }
    };
    constexpr int kFirst = 4;  // to be handed the 2 says that the other thread has started
    std::jthread other([&] { count(1, kFirst + kHandoffs); });
    count(0, kFirst);
    best = std::min(best, seconds_of([&] { count(kFirst, kFirst + kHandoffs); }) / kHandoffs);
  }
  return best;
}

}  // namespace

PeakLoops peak_loops_of(Isa isa) {
  switch (isa) {
    case Isa::kAmx: return amx_peak_loops();
    case Isa::kAvx512: return avx512_peak_loops();
    case Isa::kAvxVnni: return avx_vnni_peak_loops();
    case Isa::kAvx2: return avx2_peak_loops();
    case Isa::kNeon: return neon_peak_loops();
    case Isa::kNeonDot: return neon_dot_peak_loops();
    case Isa::kAuto:
    case Isa::kScalar: break;
  }
  return scalar_peak_loops();
}

Result<MachineLimits> measure_limits(int threads, Isa isa) {
  if (threads < 1) return invalid_argument("threads: expected at least 1");
  if (isa == Isa::kAuto) isa = supported_isas().back();
  const PeakLoops loops = peak_loops_of(isa);
  ThreadPool pool(threads);
  MachineLimits limits{.isa = isa, .threads = threads};
  for (const PeakLoop& loop : loops.int8)
    limits.int8_operations = std::max(limits.int8_operations, speed(loop, pool) / 1e9);
  limits.fp32_operations = speed(loops.fp32, pool) / 1e9;

  FLOTILLA_ASSIGN_OR_RETURN(const PageBuffer memory, PageBuffer::allocate(kReadBytes, "memory to read"));
  std::fill_n(memory.data(), kReadBytes, std::uint8_t{1});  // untouched pages are all one page of zeros
  const std::int64_t part = kReadBytes / threads / 4096 * 4096;
  std::atomic<std::uint64_t> sum{0};
  std::vector<double> speeds;
  for (int i = 0; i < kRuns; ++i) {
    const double seconds = seconds_of([&] {
      pool.run(threads, [&](std::int64_t piece, int) { sum += loops.read(memory.data() + piece * part, part); });
    });
    speeds.push_back(static_cast<double>(part * threads) / seconds / 1e9);
  }
  limits.read_bytes = median(speeds);
  if (threads > 1) limits.handoff_seconds = handoff_seconds();
  return limits;
}

}  // namespace flotilla
