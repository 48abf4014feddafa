#include "cli/run_summary.h"

#include <gtest/gtest.h>

#include "cli/run_report.h"

namespace flotilla {
namespace {

EventRecord event(std::string writer, std::string kind, nlohmann::json fields) {
  EventRecord record;
  record.writer = std::move(writer);
  record.event = {std::move(kind), std::move(fields)};
  return record;
}

EventRecord step(int number, std::vector<std::string> groups) {
  return event(
      "learner", "learner.step",
      {{"step", number}, {"version", number - 1}, {"groups", groups}, {"staleness", {1, 2}}, {"reward_mean", 0.25}});
}

TEST(RunSummary, AResumeForgetsTheStepsThatItUndid) {
  RunSummary summary;
  for (int i = 1; i <= 5; ++i) summary.add(step(i, {"a"}));
  summary.add(event("learner", "learner.resume", {{"step", 3}, {"version", 9}, {"groups", 0}, {"seconds", 1.0}}));
  summary.add(step(4, {"b"}));
  ASSERT_EQ(summary.steps().size(), 4u);
  EXPECT_EQ(summary.steps_lost(), 2);
  EXPECT_EQ(summary.resumes(), 1);
  EXPECT_EQ(summary.max_reuse(), 3);
}

TEST(RunSummary, StalenessIsAddedUpOverTheSteps) {
  RunSummary summary;
  summary.add(step(1, {"a"}));
  summary.add(step(2, {"b"}));
  EXPECT_EQ(summary.staleness(), (std::vector<std::int64_t>{2, 4}));
}

TEST(RunSummary, SaysWhatPublishingCostTheTraining) {
  RunSummary summary;
  for (const int version : {0, 1}) {
    summary.add(event("learner", "learner.publish",
                      {{"version", version},
                       {"delta_bytes", 1000 * version},
                       {"anchor_bytes", 5000},
                       {"changed", version},
                       {"total", 100},
                       {"rescaled_groups", 3},
                       {"rescaled_bytes", 198},
                       {"seconds", 9.0},
                       {"seconds_held", 0.25},
                       {"seconds_encode", 1.5},
                       {"seconds_upload", 0.5}}));
  }
  EXPECT_EQ(
      weights_report(summary),
      "weights: 2 versions; a delta is 1 kB (median), an anchor 5 kB: 5x less; 1.00 % of the int8 weights change "
      "a version\n"
      "publishing: 2.00 s of encoding and upload a version, while training stood still for 0.25 s; 6 scale groups "
      "left their range, which cost 396 B\n");
}

TEST(RunSummary, WorkersAreKeptByTheirId) {
  RunSummary summary;
  summary.add(event("w1", "worker.start", {}));
  summary.add(event("w1", "worker.sweep", {{"tokens_per_second", 120.5}, {"model_tokens", 900}, {"seconds", 7.5}}));
  summary.add(event("w1", "worker.upload", {{"group", "g"}}));
  summary.add(event("w2", "worker.stop", {}));
  EXPECT_EQ(summary.workers().at("w1").groups, 1);
  EXPECT_DOUBLE_EQ(summary.workers().at("w1").tokens_per_second, 120.5);
  EXPECT_FALSE(summary.workers().at("w1").stopped);
  EXPECT_TRUE(summary.workers().at("w2").stopped);
}

TEST(RunSummary, FieldsOfAnotherTypeReadAsZero) {
  RunSummary summary;
  summary.add(event("learner", "learner.step", {{"step", "seven"}, {"groups", 3}, {"reward_mean", nullptr}}));
  ASSERT_EQ(summary.steps().size(), 1u);
  EXPECT_EQ(summary.steps()[0].step, 0);
  EXPECT_TRUE(summary.steps()[0].groups.empty());
}

TEST(BytesText, PicksAReadableUnit) {
  EXPECT_EQ(bytes_text(999), "999 B");
  EXPECT_EQ(bytes_text(1234), "1.23 kB");
  EXPECT_EQ(bytes_text(140'000'000), "140 MB");
}

}  // namespace
}  // namespace flotilla
