#include "base/thread_pool.h"

#include <atomic>
#include <set>

#include <gtest/gtest.h>

namespace flotilla {
namespace {

TEST(ThreadPool, runs_every_piece_once) {
  for (const int threads : {1, 2, 3, 8}) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.threads(), threads);
    std::vector<int> done(1000);
    pool.run(1000, [&](std::int64_t piece, int thread) {
      EXPECT_GE(thread, 0);
      EXPECT_LT(thread, threads);
      ++done[static_cast<std::size_t>(piece)];
    });
    for (const int count : done) EXPECT_EQ(count, 1);
  }
}

TEST(ThreadPool, no_piece_and_one_piece_need_no_helper) {
  ThreadPool pool(4);
  pool.run(0, [](std::int64_t, int) { FAIL(); });
  const auto caller = std::this_thread::get_id();
  pool.run(1, [&](std::int64_t, int thread) {
    EXPECT_EQ(thread, 0);
    EXPECT_EQ(std::this_thread::get_id(), caller);
  });
}

TEST(ThreadPool, helpers_take_part) {
  ThreadPool pool(3);
  // Each piece waits until all three have begun, which one thread alone could not reach.
  std::atomic<int> begun{0};
  pool.run(3, [&](std::int64_t, int) {
    ++begun;
    begun.notify_all();
    for (int seen; (seen = begun.load()) < 3;) begun.wait(seen);
  });
  EXPECT_EQ(begun.load(), 3);
}

TEST(ThreadPool, what_pieces_wrote_is_there_after_the_loop_many_times_over) {
  ThreadPool pool(4);
  std::vector<std::int64_t> values(64);  // plain memory: a race would show under the thread sanitizer
  for (std::int64_t round = 1; round <= 3000; ++round) {
    const auto pieces = round % 7 == 0 ? std::int64_t{2} : std::int64_t{64};
    pool.run(pieces, [&](std::int64_t piece, int) { values[static_cast<std::size_t>(piece)] = round * 100 + piece; });
    for (std::int64_t piece = 0; piece < pieces; ++piece) {
      ASSERT_EQ(values[static_cast<std::size_t>(piece)], round * 100 + piece);
    }
  }
}

TEST(ThreadPool, as_many_threads_take_part_as_are_active) {
  ThreadPool pool(4);
  for (int round = 0; round < 500; ++round) {
    const int active = 1 + round % 4;
    pool.set_active(active);
    EXPECT_EQ(pool.active(), active);
    std::atomic<int> pieces{0};
    pool.run(16, [&](std::int64_t, int thread) {
      EXPECT_LT(thread, active);
      ++pieces;
    });
    EXPECT_EQ(pieces.load(), 16);
  }
  // And all of them still do: each piece waits until all four have begun.
  pool.set_active(4);
  std::atomic<int> begun{0};
  pool.run(4, [&](std::int64_t, int) {
    ++begun;
    begun.notify_all();
    for (int seen; (seen = begun.load()) < 4;) begun.wait(seen);
  });
}

TEST(ThreadPool, ends_while_some_threads_are_not_active) {
  for (int round = 0; round < 200; ++round) {
    ThreadPool pool(4);
    pool.set_active(1 + round % 4);
    pool.run(8, [](std::int64_t, int) {});
  }
}

TEST(ThreadPool, pools_come_and_go) {
  for (int i = 0; i < 200; ++i) {
    ThreadPool pool(3);
    std::atomic<int> sum{0};
    if (i % 2 == 0) pool.run(5, [&](std::int64_t piece, int) { sum += static_cast<int>(piece); });
    EXPECT_EQ(sum.load(), i % 2 == 0 ? 10 : 0);
  }
}

TEST(ThreadPoolDeathTest, needs_a_thread) { EXPECT_DEATH(ThreadPool(0), "threads >= 1"); }

}  // namespace
}  // namespace flotilla
