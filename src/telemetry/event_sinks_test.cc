#include "telemetry/event_sinks.h"

#include <thread>

#include <gtest/gtest.h>

namespace flotilla {
namespace {

using namespace std::chrono_literals;

TEST(FanOutSink, hands_each_event_to_every_sink) {
  MemorySink a, b;
  FanOutSink both({&a, &b});
  both.emit({"x.y", {{"n", 1}}});
  ASSERT_EQ(a.events().size(), 1u);
  ASSERT_EQ(b.events().size(), 1u);
  EXPECT_EQ(b.events()[0].fields["n"], 1);
}

TEST(MemorySink, waits_for_events_of_another_thread) {
  MemorySink sink;
  std::jthread other([&] {
    for (int i = 0; i < 3; ++i) sink.emit({"x.y", {{"n", i}}});
    sink.emit({"x.z", {}});
  });
  EXPECT_TRUE(sink.wait_for("x.y", 3, 10s));
  EXPECT_EQ(sink.events("x.y")[2].fields["n"], 2);
  EXPECT_FALSE(sink.wait_for("x.none", 1, 0ms));
}

}  // namespace
}  // namespace flotilla
