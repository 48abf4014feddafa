#include "rollout/verify_speed.h"

#include <gtest/gtest.h>

#include "rollout/group_file.h"
#include "rollout/run_for_tests.h"
#include "rollout/sweep.h"

namespace flotilla {
namespace {

// Time that passes with each look at it.
class CountingClock final : public Clock {
 public:
  std::chrono::nanoseconds monotonic() const override { return std::chrono::seconds(++looks_); }
  std::chrono::milliseconds wall() const override { return std::chrono::milliseconds(0); }

 private:
  mutable int looks_ = 0;
};

class VerifySpeedTest : public testing::Test {
 protected:
  VerifySpeedTest() : assets_(run_.assets().value()), engine_(toy_engine()) {}

  // Two groups of version 0, made by one worker.
  std::vector<Group> groups() {
    std::vector<Group> groups;
    std::vector<SweepItem> items;
    for (std::uint64_t counter = 0; counter < 2; ++counter) {
      Group& group = groups.emplace_back();
      GroupIdentity& identity = group.identity;
      identity.run = assets_.spec.run;
      identity.seed = assets_.spec.seed;
      identity.operator_id = OperatorId("someone");
      identity.worker = WorkerId("worker");
      identity.counter = counter;
      identity.task = assigned_task(identity.seed, identity.worker, counter, 1000);
      identity.backend = "cpu";
      identity.tokenizer = assets_.tokenizer->digest();
      identity.environment = assets_.environment->digest();
      identity.corpus = assets_.spec.environment;
      identity.group = group_id(identity);
      items.push_back({.task = assets_.environment->task(Split::kTrain, identity.task).value(),
                       .sample_group = sample_group(identity.group),
                       .episodes = assets_.spec.group_size});
    }
    const PulledVersion version = toy_version(0);
    const SweepSettings settings{
        .seed = assets_.spec.seed, .sampling = {}, .version = version.version, .state = version.state_digest};
    const auto keep = [&](FinishedGroup finished) {
      groups[finished.item].prompt_tokens = finished.prompt_tokens;
      groups[finished.item].episodes = std::move(finished.episodes);
      return ok_status();
    };
    FLOTILLA_CHECK(run_sweep(*engine_, assets_.rules, settings, items, {.on_group = keep}).ok());
    return groups;
  }

  Result<VerifySpeed> measure(std::span<const Group> groups) {
    return measure_verification(
        assets_, *engine_, [](Version version) { return toy_version(version.value()); }, groups, 3, [](int) {},
        CountingClock());
  }

  ToyRun run_;
  RunAssets assets_;
  std::unique_ptr<Engine> engine_;
};

TEST_F(VerifySpeedTest, MeasuresTheSameTokensInEveryWay) {
  const std::vector<Group> groups = this->groups();
  const auto before = engine_->usage().tokens_computed;
  const auto speed = measure(groups);
  ASSERT_TRUE(speed.ok()) << speed.status().to_string();
  EXPECT_EQ(speed->groups, 2);
  EXPECT_EQ(speed->episodes, 6);
  for (const auto& seconds : {speed->verify, speed->prefill, speed->sweep, speed->decode}) {
    EXPECT_EQ(seconds, (std::vector<double>{1, 1, 1}));
  }
  // What one round of each computes, and the prompt that the decoding begins with.
  const std::int64_t round = (engine_->usage().tokens_computed - before) / 4;
  const std::int64_t trunk = 3 * speed->tokens + speed->decoded + groups[0].prompt_tokens - 1 - round;
  EXPECT_GE(trunk, 0) << "the sweep computes once what both prompts begin with";
  EXPECT_LT(trunk, groups[0].prompt_tokens);
  EXPECT_EQ(engine_->usage().sequences, 0);
}

TEST_F(VerifySpeedTest, MeasuresNothingThatIsNotHonest) {
  std::vector<Group> groups = this->groups();
  groups[1].episodes[0].reward = 7;
  EXPECT_EQ(measure(groups).status().code(), StatusCode::kInvalidArgument);
}

TEST_F(VerifySpeedTest, TakesGroupsOfOneVersion) {
  std::vector<Group> groups = this->groups();
  std::vector<Bytes> files;
  for (const Group& group : groups) files.push_back(write_group(group));
  EXPECT_EQ(groups_of_one_version(files, 8)->size(), 2u);
  EXPECT_EQ(groups_of_one_version(files, 1)->size(), 1u);
  groups[0].episodes[1].spans[0].version = Version(1);
  files[0] = write_group(groups[0]);
  ASSERT_EQ(groups_of_one_version(files, 8)->size(), 1u);
  EXPECT_EQ(groups_of_one_version(files, 8)->front().identity.counter, 1u);
  files.pop_back();
  EXPECT_EQ(groups_of_one_version(files, 8).status().code(), StatusCode::kFailedPrecondition);
}

TEST(VerifySpeedText, NamesTheRatios) {
  const VerifySpeed speed{.groups = 2,
                          .episodes = 6,
                          .tokens = 200,
                          .model_tokens = 100,
                          .decoded = 10,
                          .verify = {2, 1, 3},
                          .prefill = {1.8, 1.8, 1.8},
                          .sweep = {8, 8, 8},
                          .decode = {1, 1, 1}};
  const std::string text = verify_speed_text(speed);
  EXPECT_NE(text.find("medians of 3"), std::string::npos) << text;
  EXPECT_NE(text.find("90 % of its speed"), std::string::npos) << text;
  EXPECT_NE(text.find("25.0 tokens/s   verification is 4.0 times"), std::string::npos) << text;
  EXPECT_NE(text.find("10.0 tokens/s   verification is 10.0 times"), std::string::npos) << text;
}

}  // namespace
}  // namespace flotilla
