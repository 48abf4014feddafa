#include "cli/learner_arguments.h"

#include <gtest/gtest.h>

namespace flotilla {
namespace {

using Arguments = std::vector<std::string>;

TEST(LearnerArguments, NameTheRunWhereverItStands) {
  const Arguments expected{"--run.hub", "/srv/hub", "--run.name", "ada/demo", "--config", "demo.toml", "--dry-run"};
  for (const Arguments& given : {Arguments{"/srv/hub/ada/demo", "--config", "demo.toml", "--dry-run"},
                                 Arguments{"--config", "demo.toml", "/srv/hub/ada/demo", "--dry-run"},
                                 Arguments{"--config", "demo.toml", "--dry-run", "/srv/hub/ada/demo"}}) {
    EXPECT_EQ(*learner_arguments(given), expected);
  }
}

TEST(LearnerArguments, ASingleWriterIsASettingOfTheBucket) {
  const auto hub = [](const char* run) {
    const auto arguments = learner_arguments({run, "--single-writer", "--dry-run"});
    return arguments.ok() ? (*arguments)[1] + " " + arguments->back() : arguments.status().message();
  };
  EXPECT_EQ(hub("s3://bucket/ada/demo"), "s3://bucket?single-writer=yes --dry-run");
  EXPECT_EQ(hub("s3://bucket/ada/demo?region=r"), "s3://bucket?region=r&single-writer=yes --dry-run");
  EXPECT_NE(hub("/srv/hub/ada/demo").find("in a bucket"), std::string::npos);
  EXPECT_EQ(learner_arguments({"--single-writer"}).status().code(), StatusCode::kInvalidArgument);
}

TEST(LearnerArguments, MayLeaveTheRunToTheConfiguration) {
  const Arguments given{"--config", "configs/demo/run.toml", "--learner.steps=20", "--help"};
  EXPECT_EQ(*learner_arguments(given), given);
}

TEST(LearnerArguments, AreRefusedWithTwoRunsOrOneThatIsNone) {
  const auto two = learner_arguments({"hub/ada/a", "hub/ada/b"});
  ASSERT_EQ(two.status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(two.status().message().find("hub/ada/b"), std::string::npos);
  EXPECT_EQ(learner_arguments({"demo"}).status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace flotilla
