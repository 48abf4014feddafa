#include "rollout/courtesy.h"

#include <gtest/gtest.h>

#include <functional>

#include "base/philox.h"

namespace flotilla {
namespace {

using std::chrono::nanoseconds;
using std::chrono::seconds;

constexpr int kThreads = 2;

// A machine of two cores, looked at once a second.
class Machine {
 public:
  explicit Machine(Politeness politeness) : courtesy(politeness, kThreads) {}

  void run(int times, const MachineUse& use) {
    for (int i = 0; i < times; ++i) {
      MachineUse now = use;
      now.time = time += seconds(1);
      courtesy.see(now);
    }
  }
  void load(int times, double cores) { run(times, {.cores = 2, .foreground = cores, .memory_free = 0.5}); }
  void memory(int times, double free, double waiting = 0) {
    run(times, {.cores = 2, .foreground = 0, .waiting_for_memory = waiting, .memory_free = free});
  }

  Courtesy courtesy;
  nanoseconds time{0};
};

TEST(Courtesy, LimitsNothingWhileTheMachineIsIdle) {
  for (const Politeness politeness : {Politeness::kPolite, Politeness::kNormal, Politeness::kGreedy}) {
    Machine machine(politeness);
    machine.load(100, 0.02);
    EXPECT_EQ(machine.courtesy.next_groups(16), 16);
    EXPECT_EQ(machine.courtesy.resident_groups(16), Courtesy::kAnyNumber);
    EXPECT_EQ(machine.courtesy.rest_after(seconds(1)), nanoseconds(0));
  }
}

TEST(Courtesy, IsPoliteToACompileOfOneJob) {
  Machine machine(Politeness::kPolite);
  machine.load(10, 0);
  machine.load(2, 1);
  EXPECT_EQ(machine.courtesy.rest_after(std::chrono::milliseconds(100)), std::chrono::milliseconds(900));
  EXPECT_EQ(machine.courtesy.next_groups(16), 1) << "the sweep would take ten times as long";
  EXPECT_EQ(machine.courtesy.resident_groups(16), Courtesy::kAnyNumber) << "what is computed already is kept";
  machine.load(600, 1);
  EXPECT_EQ(machine.courtesy.time_share(), 0.1);
}

TEST(Courtesy, DoesNotMindAMomentsWorkOfADaemon) {
  Machine machine(Politeness::kPolite);
  for (int i = 0; i < 100; ++i) {
    machine.load(20, 0.02);
    machine.load(1, 0.4);
    EXPECT_EQ(machine.courtesy.time_share(), 1);
  }
}

TEST(Courtesy, RecoversSlowlyAndNotInThePausesOfACompile) {
  Machine machine(Politeness::kPolite);
  for (int file = 0; file < 10; ++file) {
    machine.load(5, 1);
    machine.load(3, 0);
    EXPECT_EQ(machine.courtesy.time_share(), 0.1);
  }
  int calm = 0;
  for (double before = 0.1; machine.courtesy.time_share() < 1; ++calm) {
    machine.load(1, 0);
    EXPECT_LE(machine.courtesy.time_share(), 2 * before);
    EXPECT_GE(machine.courtesy.time_share(), before);
    before = machine.courtesy.time_share();
    ASSERT_LT(calm, 60);
  }
  EXPECT_GT(calm, 12);
}

TEST(Courtesy, IsNormalToWhoNeedsItsCores) {
  Machine machine(Politeness::kNormal);
  machine.load(100, 0.15);
  EXPECT_EQ(machine.courtesy.time_share(), 1);
  machine.load(10, 1);
  EXPECT_EQ(machine.courtesy.time_share(), 0.5);
  Machine large(Politeness::kNormal);
  large.run(100, {.cores = 16, .foreground = 12});
  EXPECT_EQ(large.courtesy.time_share(), 1) << "there is room for both";
}

TEST(Courtesy, IsGreedyWhenTold) {
  Machine machine(Politeness::kGreedy);
  machine.load(100, 2);
  EXPECT_EQ(machine.courtesy.time_share(), 1);
}

TEST(Courtesy, JudgesByWaitingTasksWhereTheLoadIsNotKnown) {
  Machine machine(Politeness::kPolite);
  machine.run(10, {.waiting_for_cpu = 0.6});
  EXPECT_EQ(machine.courtesy.time_share(), 0.1);
  machine.run(60, {.waiting_for_cpu = 0.01});
  EXPECT_EQ(machine.courtesy.time_share(), 1);
  machine.run(10, {.waiting_for_cpu = 0.6});
  machine.run(60, {});
  EXPECT_EQ(machine.courtesy.time_share(), 1) << "nothing known limits nothing";
}

TEST(Courtesy, ShrinksToOneGroupUnderMemoryPressure) {
  for (const Politeness politeness : {Politeness::kPolite, Politeness::kNormal, Politeness::kGreedy}) {
    Machine little(politeness), stalled(politeness);
    little.memory(30, 0.03);
    stalled.memory(30, 0.5, 0.4);
    for (const Machine* machine : {&little, &stalled}) {
      EXPECT_EQ(machine->courtesy.resident_groups(128), 1);
      EXPECT_EQ(machine->courtesy.next_groups(128), 1);
      EXPECT_EQ(machine->courtesy.rest_after(seconds(1)), nanoseconds(0));
    }
  }
}

TEST(Courtesy, TakesAHalvingsEffectIntoAccount) {
  Machine machine(Politeness::kPolite);
  machine.memory(1, 0.03);
  EXPECT_EQ(machine.courtesy.memory_share(), 0.5);
  machine.memory(1, 0.03);
  EXPECT_EQ(machine.courtesy.memory_share(), 0.5) << "the first halving may not show yet";
  machine.memory(1, 0.03);
  EXPECT_EQ(machine.courtesy.memory_share(), 0.25);
  machine.memory(100, 0.09);
  EXPECT_EQ(machine.courtesy.memory_share(), 0.25) << "enough to go on, not enough to grow";
  machine.memory(31, 0.3);
  EXPECT_EQ(machine.courtesy.memory_share(), 0.5);
  machine.memory(31, 0.3);
  EXPECT_EQ(machine.courtesy.memory_share(), 1);
}

// The worker's own groups are what fills the memory: growing brings the pressure back each time.
TEST(Courtesy, TriesLessAndLessOftenWhatBroughtThePressureBack) {
  Machine machine(Politeness::kPolite);
  int halvings = 0;
  for (int second = 0; second < 4 * 3600; ++second) {
    const double before = machine.courtesy.memory_share();
    machine.memory(1, before > 0.25 ? 0.05 : 0.2);
    halvings += machine.courtesy.memory_share() < before;
    EXPECT_GE(machine.courtesy.memory_share(), 0.125);
  }
  EXPECT_LT(halvings, 30);
}

// Whatever happens, limits are in their range, change by what they may, and go away when everything is quiet.
TEST(Courtesy, StaysInBoundsUnderAnySchedule) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(seed);
    PhiloxStream random(seed, 0);
    const auto politeness = static_cast<Politeness>(seed % 3);
    Courtesy courtesy(politeness, 1 + static_cast<int>(seed % 5));
    nanoseconds time{0};
    const auto chance = [&] { return random.uniform(); };
    const auto maybe = [&](double value) { return chance() < 0.2 ? std::nullopt : std::optional(value); };
    double load = 0, free = 1;
    for (int i = 0; i < 2000; ++i) {
      if (chance() < 0.05) load = 4 * chance();
      if (chance() < 0.05) free = chance() < 0.5 ? 1 : 0.15 * chance();
      const double time_before = courtesy.time_share(), memory_before = courtesy.memory_share();
      time += nanoseconds(static_cast<std::int64_t>(3e9 * chance()));
      courtesy.see({.time = time,
                    .cores = maybe(4),
                    .foreground = maybe(load),
                    .waiting_for_cpu = maybe(chance()),
                    .waiting_for_memory = maybe(0.15 * chance()),
                    .memory_free = maybe(free)});
      const double least = politeness == Politeness::kPolite ? 0.1 : politeness == Politeness::kNormal ? 0.5 : 1;
      ASSERT_GE(courtesy.time_share(), least);
      ASSERT_LE(courtesy.time_share(), std::min(1.0, 2 * time_before));
      ASSERT_GE(courtesy.memory_share(), std::max(1.0 / 256, memory_before / 2));
      ASSERT_LE(courtesy.memory_share(), std::min(1.0, 2 * memory_before));
      const std::int64_t groups = 1 + static_cast<std::int64_t>(seed);
      ASSERT_GE(courtesy.next_groups(groups), 1);
      ASSERT_LE(courtesy.next_groups(groups), courtesy.resident_groups(groups));
      if (courtesy.memory_share() < 1) {
        ASSERT_LE(courtesy.resident_groups(groups), groups);
      }
      ASSERT_GE(courtesy.rest_after(seconds(1)), nanoseconds(0));
      ASSERT_LE(courtesy.rest_after(seconds(100)), seconds(60));
    }
    for (int i = 0; i < 4 * 3600; ++i) {
      courtesy.see(
          {.time = time += seconds(1), .cores = 4, .foreground = 0, .waiting_for_memory = 0, .memory_free = 1});
    }
    EXPECT_EQ(courtesy.time_share(), 1);
    EXPECT_EQ(courtesy.memory_share(), 1);
  }
}

TEST(Courtesy, IgnoresALookThatIsNotLaterThanTheLast) {
  Machine machine(Politeness::kPolite);
  machine.load(10, 0);
  machine.courtesy.see({.time = machine.time, .cores = 2, .foreground = 2, .memory_free = 0});
  EXPECT_EQ(machine.courtesy.next_groups(8), 8);
}

}  // namespace
}  // namespace flotilla
