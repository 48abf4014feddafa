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

TEST(ThreadPool, each_thread_begins_with_its_own_part_of_the_range) {
  ThreadPool pool(3);
  for (int round = 0; round < 20; ++round) {
    std::atomic<int> begun{0};
    std::atomic<std::int64_t> first[3]{-1, -1, -1};
    pool.run(12, [&](std::int64_t piece, int thread) {
      std::int64_t none = -1;
      if (!first[thread].compare_exchange_strong(none, piece)) return;
      ++begun;
      begun.notify_all();
      for (int seen; (seen = begun.load()) < 3;) begun.wait(seen);  // so that nobody is done before the others begin
    });
    for (std::int64_t thread = 0; thread < 3; ++thread) EXPECT_EQ(first[thread].load(), 4 * thread);
  }
}

TEST(ThreadPool, what_a_thread_that_is_held_up_leaves_is_taken_by_the_other_but_for_its_next_piece) {
  ThreadPool pool(2);
  std::atomic<int> done{0};
  std::vector<int> taken_by(8, -1);
  pool.run(8, [&](std::int64_t piece, int thread) {
    // Whoever begins first waits for the other; then the helper, in piece 4, until all but its next are done.
    if (piece == 0 || piece == 4) {
      done.fetch_add(1);
      done.notify_all();
      for (int seen; (seen = done.load()) < 2;) done.wait(seen);
    }
    if (piece == 4) {
      for (int seen; (seen = done.load()) < 7;) done.wait(seen);
    } else if (piece != 0) {
      done.fetch_add(1);
      done.notify_all();
    }
    taken_by[static_cast<std::size_t>(piece)] = thread;
  });
  EXPECT_EQ(taken_by, (std::vector<int>{0, 0, 0, 0, 1, 0, 0, 1}));
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
