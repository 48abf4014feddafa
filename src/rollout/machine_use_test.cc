#include "rollout/machine_use.h"

#include <gtest/gtest.h>

#include "base/files.h"

namespace flotilla {
namespace {

using std::chrono::seconds;

// Files as Linux 6 writes them, in a folder of its own.
class MachineUseTest : public testing::Test {
 protected:
  void write(const std::string& name, std::string_view text) {
    ASSERT_TRUE(write_file_atomically(folder_.path() / name, text).ok());
  }
  void stat(std::uint64_t user, std::uint64_t nice, std::uint64_t system) {
    write("proc/stat", "cpu  " + std::to_string(user) + " " + std::to_string(nice) + " " + std::to_string(system) +
                           " 18271 361 0 0 110 0 0\ncpu0 1 2 3 4 5 6 7 8 0 0\ncpu1 1 2 3 4 5 6 7 8 0 0\nctxt 5\n");
  }
  // In ticks of a hundredth of a second.
  static std::string process(const std::string& name, std::uint64_t user, std::uint64_t system, int nice, int policy,
                             std::uint64_t start = 51402) {
    return "9886 (" + name + ") R 9878 9878 3836 0 -1 4194304 99 0 0 0 " + std::to_string(user) + " " +
           std::to_string(system) + " 7 7 20 " + std::to_string(nice) + " 1 0 " + std::to_string(start) +
           " 3133440 389 18446744073709551615 1 1 1 0 0 0 0 0 0 0 0 0 17 1 0 " + std::to_string(policy) +
           " 0 0 0 1 1 1 1 1 1 1 0\n";
  }
  MachineUseReader reader() { return MachineUseReader(folder_.path() / "proc", folder_.path() / "groups"); }

  TemporaryFolder folder_;
};

TEST_F(MachineUseTest, ForegroundIsWhatOthersTakeAtOrdinaryPriority) {
  stat(1000, 500, 200);
  write("proc/self/stat", "10 " + process("flotilla", 100, 10, 0, 0).substr(5));
  write("proc/10/stat", process("flotilla", 100, 10, 0, 0));
  write("proc/20/stat", process("niced", 400, 50, 19, 0));
  write("proc/30/stat", process("idle", 300, 20, 0, 5));
  write("proc/40/stat", process("cc1plus", 300, 20, 0, 0));
  MachineUseReader reader = this->reader();
  const MachineUse first = reader.look(seconds(1));
  EXPECT_EQ(first.cores, 2);
  EXPECT_FALSE(first.foreground);
  // In two seconds: this process 60 + 5, the niced one 100 + 10, the idle one 40 + 3, a compiler 140 + 12.
  stat(1240, 600, 230);
  write("proc/10/stat", process("flotilla", 160, 15, 0, 0));
  write("proc/20/stat", process("niced", 500, 60, 19, 0));
  write("proc/30/stat", process("idle", 340, 23, 0, 5));
  const MachineUse second = reader.look(seconds(3));
  ASSERT_TRUE(second.foreground);
  EXPECT_NEAR(*second.foreground, 1.52 / 2, 1e-9);
}

TEST_F(MachineUseTest, OfANumberGivenOutAgainTheNewProcessCounts) {
  stat(0, 0, 0);
  write("proc/20/stat", process("one", 0, 500, 19, 0, 1));
  MachineUseReader reader = this->reader();
  reader.look(seconds(1));
  stat(0, 0, 100);
  write("proc/20/stat", process("another", 0, 40, 19, 0, 2));
  EXPECT_NEAR(reader.look(seconds(2)).foreground.value(), 0.6, 1e-9);
}

TEST_F(MachineUseTest, WhatAProcessSpentBeforeItWasNicedStaysForeground) {
  stat(0, 0, 0);
  write("proc/20/stat", process("make", 0, 500, 0, 0));
  MachineUseReader reader = this->reader();
  reader.look(seconds(1));
  stat(0, 0, 100);
  write("proc/20/stat", process("make", 0, 530, 10, 0));
  EXPECT_NEAR(reader.look(seconds(2)).foreground.value(), 0.7, 1e-9);
}

TEST_F(MachineUseTest, PressureIsTheWorseOfMachineAndControlGroup) {
  const auto pressure = [](int total) {
    return "some avg10=5.91 avg60=12.58 avg300=9.43 total=" + std::to_string(total) +
           "\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=7\n";
  };
  write("proc/self/cgroup", "4:memory:/v1\n0::/user.slice/work.scope\n");
  write("proc/pressure/cpu", pressure(1000));
  write("proc/pressure/memory", pressure(5000));
  write("groups/user.slice/work.scope/memory.pressure", pressure(100));
  MachineUseReader reader = this->reader();
  EXPECT_FALSE(reader.look(seconds(1)).waiting_for_cpu);
  write("proc/pressure/cpu", pressure(501000));
  write("proc/pressure/memory", pressure(105000));
  write("groups/user.slice/work.scope/memory.pressure", pressure(300100));
  const MachineUse use = reader.look(seconds(2));
  EXPECT_NEAR(use.waiting_for_cpu.value(), 0.5, 1e-9);
  EXPECT_NEAR(use.waiting_for_memory.value(), 0.3, 1e-9);
}

TEST_F(MachineUseTest, MemoryFreeIsTheLeastOfMachineAndGroups) {
  write("proc/meminfo", "MemTotal:        4000000 kB\nMemFree:          100000 kB\nMemAvailable:    3000000 kB\n");
  EXPECT_NEAR(reader().look(seconds(1)).memory_free.value(), 0.75, 1e-9);
  write("proc/self/cgroup", "0::/a/b\n");
  write("groups/a/memory.max", "1000\n");
  write("groups/a/memory.high", "max\n");
  write("groups/a/memory.current", "700\n");
  write("groups/a/memory.stat", "anon 400\nfile 300\ninactive_file 100\nactive_file 100\n");
  EXPECT_NEAR(reader().look(seconds(1)).memory_free.value(), 0.5, 1e-9) << "what is cached can be had back";
  write("groups/a/b/memory.max", "max\n");
  write("groups/a/b/memory.high", "800\n");
  write("groups/a/b/memory.current", "600\n");
  EXPECT_NEAR(reader().look(seconds(1)).memory_free.value(), 0.25, 1e-9);
  write("groups/a/b/memory.current", "1600\n");
  EXPECT_EQ(reader().look(seconds(1)).memory_free, 0);
}

TEST_F(MachineUseTest, WhatIsAbsentOrGarbledSaysNothing) {
  const auto expect_nothing = [&] {
    MachineUseReader reader = this->reader();
    reader.look(seconds(1));
    const MachineUse use = reader.look(seconds(2));
    EXPECT_FALSE(use.cores || use.foreground || use.waiting_for_cpu || use.waiting_for_memory || use.memory_free);
  };
  expect_nothing();
  for (const std::string_view garbage : {"", "\n", "cpu", "cpu  a b c d e f g h", "some total=", "MemTotal: much kB",
                                         "0:://", "9 (x", "-1", "99999999999999999999999999"}) {
    for (const char* name : {"proc/stat", "proc/self/stat", "proc/self/cgroup", "proc/pressure/cpu", "proc/1/stat",
                             "proc/pressure/memory", "proc/meminfo", "groups/memory.max", "groups/memory.current"}) {
      write(name, garbage);
    }
    expect_nothing();
  }
}

TEST_F(MachineUseTest, ReadsThisMachine) {
  MachineUseReader reader;
  reader.look(seconds(1));
  const MachineUse use = reader.look(seconds(2));
  EXPECT_GE(use.cores.value_or(0), 1);
  EXPECT_GE(use.foreground.value_or(-1), 0);
  EXPECT_GT(use.memory_free.value_or(0), 0);
  EXPECT_LE(use.memory_free.value_or(2), 1);
}

TEST(ProcessStat, IsReadBehindANameThatHoldsAnything) {
  const std::string_view tail =
      " S 1 2 3 4 5 6 7 8 9 10 14 15 16 17 18 -5 20 21 22 23 24 25 26 27 28 29 30 31 32 33 34 35 36 37 38 39 40 3";
  const ProcessStat expected{.user_ticks = 14, .system_ticks = 15, .nice = -5, .start = 22, .policy = 3};
  EXPECT_EQ(parse_process_stat("1 (a)" + std::string(tail)), expected);
  EXPECT_EQ(parse_process_stat("1 () 9 (x) y)" + std::string(tail) + "\n"), expected);
  EXPECT_EQ(parse_process_stat("1 (a)" + std::string(tail.substr(0, tail.size() - 2))), std::nullopt);
  EXPECT_EQ(parse_process_stat("1 a" + std::string(tail)), std::nullopt);
  EXPECT_EQ(parse_process_stat("1 (a)" + std::string(tail) + "x"), std::nullopt);
}

TEST(OrdinaryTicks, LeaveOutNicedAndIdleTime) {
  EXPECT_EQ(ordinary_ticks("cpu  10 20 30 40 50 6 7 80 0 0\n"), 10u + 30 + 6 + 7);
  EXPECT_EQ(ordinary_ticks("cpu0 10 20 30 40 50 6 7 80 0 0\n"), std::nullopt);
  EXPECT_EQ(ordinary_ticks("cpu 10 20 30 40 50 6\n"), std::nullopt);
  EXPECT_EQ(ordinary_ticks("cpu 10 20 -30 40 50 6 7\n"), std::nullopt);
}

TEST(PressureTotal, IsOfSomeTasks) {
  EXPECT_EQ(pressure_total("full avg10=0 total=9\nsome avg10=0.00 avg60=0.00 avg300=0.00 total=47376949\n"), 47376949u);
  EXPECT_EQ(pressure_total("full avg10=0 total=9\n"), std::nullopt);
  EXPECT_EQ(pressure_total("some avg10=0 total=9x\n"), std::nullopt);
}

}  // namespace
}  // namespace flotilla
