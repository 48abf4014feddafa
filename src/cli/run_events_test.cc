#include "cli/run_events.h"

#include <gtest/gtest.h>

namespace flotilla {
namespace {

std::string line(const char* writer, int sequence, int time) {
  EventRecord record;
  record.time = std::chrono::milliseconds(time);
  record.writer = writer;
  record.sequence = static_cast<std::uint64_t>(sequence);
  record.event = {"demo.phase", {{"phase", "rl"}}};
  return event_line(record);
}

TEST(RunEvents, ReturnsEachSegmentOnceAndByTime) {
  const auto store = make_memory_store();
  const HubLayout layout{"ada/demo"};
  ASSERT_TRUE(store->put(layout.events("learner", 0), as_bytes(line("learner", 0, 30))).ok());
  ASSERT_TRUE(store->put(layout.events("w1", 0), as_bytes(line("w1", 0, 10))).ok());
  RunEvents events(*store, layout);
  auto first = events.poll();
  ASSERT_TRUE(first.ok()) << first.status().message();
  ASSERT_EQ(first->size(), 2u);
  EXPECT_EQ((*first)[0].writer, "w1");
  EXPECT_EQ((*first)[1].writer, "learner");

  ASSERT_TRUE(store->put(layout.events("w1", 1), as_bytes(line("w1", 1, 40))).ok());
  auto second = events.poll();
  ASSERT_TRUE(second.ok());
  ASSERT_EQ(second->size(), 1u);
  EXPECT_EQ((*second)[0].sequence, 1u);
}

TEST(RunEvents, PassesOverACorruptSegmentAndNamesIt) {
  const auto store = make_memory_store();
  const HubLayout layout{"ada/demo"};
  ASSERT_TRUE(store->put(layout.events("learner", 0), as_bytes("no event\n")).ok());
  ASSERT_TRUE(store->put(layout.events("learner", 1), as_bytes(line("learner", 7, 10))).ok());
  RunEvents events(*store, layout);
  auto records = events.poll();
  ASSERT_TRUE(records.ok());
  EXPECT_EQ(records->size(), 1u);
  const auto problems = events.take_problems();
  ASSERT_EQ(problems.size(), 1u);
  EXPECT_NE(problems[0].find("events/learner/0000000000"), std::string::npos);
}

TEST(RunEvents, AWorkerCannotSpeakForTheLearner) {
  const auto store = make_memory_store();
  const HubLayout layout{"ada/demo"};
  ASSERT_TRUE(store->put(layout.events("w1", 0), as_bytes(line("learner", 0, 10))).ok());
  RunEvents events(*store, layout);
  auto records = events.poll();
  ASSERT_TRUE(records.ok());
  EXPECT_TRUE(records->empty());
}

}  // namespace
}  // namespace flotilla
