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
