#include "engine/thread_choice.h"

#include <functional>
#include <map>

#include <gtest/gtest.h>

namespace flotilla {
namespace {

// Passes by number of threads, after `passes` of `rows` rows whose cost is `cost(threads)`.
std::map<int, int> passes_by_threads(ThreadChoice& choice, std::int64_t rows, int passes,
                                     const std::function<double(int)>& cost) {
  std::map<int, int> taken;
  for (int i = 0; i < passes; ++i) {
    const int threads = choice.threads(rows);
    ++taken[threads];
    choice.add(rows, cost(threads));
  }
  return taken;
}

TEST(ThreadChoice, TakesOneThreadWhereMoreGainNothing) {
  ThreadChoice choice(2);
  const auto taken = passes_by_threads(choice, 1, 1000, [](int threads) { return threads == 1 ? 1.0 : 1.2; });
  EXPECT_GT(taken.at(1), 950);
  EXPECT_EQ(choice.threads(1), 1);
}

TEST(ThreadChoice, KeepsAllThreadsWhereTheyGain) {
  ThreadChoice choice(6);
  const auto taken = passes_by_threads(choice, 64, 3000, [](int threads) { return 1.0 / threads; });
  EXPECT_GT(taken.at(6), 2900);
  EXPECT_FALSE(taken.contains(1)) << "only the neighbours of the best are tried";
}

TEST(ThreadChoice, FindsABestNumberInTheMiddle) {
  ThreadChoice choice(8);
  const auto taken =
      passes_by_threads(choice, 1, 2000, [](int threads) { return threads == 2 ? 1.0 : 1.2 + threads * 0.1; });
  EXPECT_GT(taken.at(2), 1850);
}

TEST(ThreadChoice, JudgesManyRowsApartFromFew) {
  ThreadChoice choice(2);
  for (int i = 0; i < 500; ++i) {
    choice.add(1, choice.threads(1) == 1 ? 1.0 : 2.0);
    choice.add(64, choice.threads(64) == 2 ? 1.0 : 2.0);
  }
  EXPECT_EQ(choice.threads(1), 1);
  EXPECT_EQ(choice.threads(64), 2);
}

TEST(ThreadChoice, FollowsAMachineThatChanges) {
  ThreadChoice choice(2);
  const auto alone = [](int threads) { return 1.0 / threads; };
  const auto crowded = [](int threads) { return threads == 1 ? 1.5 : 2.0; };
  passes_by_threads(choice, 64, 400, alone);
  EXPECT_GT(passes_by_threads(choice, 64, 1000, crowded).at(1), 700);
  EXPECT_GT(passes_by_threads(choice, 64, 1000, alone).at(2), 700);
}

TEST(ThreadChoice, IgnoresASlowPassNowAndThen) {
  ThreadChoice choice(2);
  int number = 0;
  const auto taken =
      passes_by_threads(choice, 64, 3000, [&](int threads) { return 1.0 / threads * (++number % 7 == 0 ? 10 : 1); });
  EXPECT_GT(taken.at(2), 2850);
}

TEST(ThreadChoice, HasNothingToChooseWithOneThread) {
  ThreadChoice choice(1);
  EXPECT_EQ(passes_by_threads(choice, 1, 100, [](int) { return 1.0; }).at(1), 100);
}

}  // namespace
}  // namespace flotilla
