#include "rollout/run_assets.h"

#include <gtest/gtest.h>

#include "rollout/run_for_tests.h"

namespace flotilla {
namespace {

TEST(RunAssets, AreWhatTheRunNames) {
  ToyRun run;
  const auto assets = run.assets();
  ASSERT_TRUE(assets.ok()) << assets.status().to_string();
  EXPECT_EQ(assets->spec, run.spec);
  EXPECT_EQ(assets->description.context, toy_model().description.context);
  EXPECT_EQ(assets->tokenizer->digest(), toy_tokenizer()->digest());
  EXPECT_EQ(assets->rules.environment, assets->environment.get());
}

TEST(RunAssets, AreKeptInTheCache) {
  ToyRun run;
  ASSERT_TRUE(run.assets().ok());
  for (const auto& digest : {run.spec.model_config, run.spec.tokenizer, run.spec.environment}) {
    ASSERT_TRUE(run.store->remove(run.layout.artifact(digest)).ok());
  }
  EXPECT_TRUE(run.assets().ok());
}

TEST(RunAssets, AreFetchedAgainWhenTheCacheIsDamaged) {
  ToyRun run;
  ASSERT_TRUE(run.assets().ok());
  const auto path = run.scratch.path() / "artifacts" / run.spec.tokenizer.to_hex();
  ASSERT_TRUE(write_file_atomically(path, std::string_view("{")).ok());
  EXPECT_TRUE(run.assets().ok());
  EXPECT_EQ(sha256(*read_file(path)), run.spec.tokenizer);
}

TEST(RunAssets, OfADamagedHubAreRefused) {
  ToyRun run;
  ASSERT_TRUE(run.store->put(run.layout.artifact(run.spec.tokenizer), as_bytes("{")).ok());
  EXPECT_EQ(run.assets().status().code(), StatusCode::kDataLoss);
}

struct OtherProgram {
  const char* name;
  std::function<void(RunSpec&)> change;
};

class RunAssetsAskForAnUpgrade : public testing::TestWithParam<OtherProgram> {};

TEST_P(RunAssetsAskForAnUpgrade, WhenTheRunIsNewer) {
  ToyRun run(GetParam().change);
  const Status status = run.assets().status();
  EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition) << status.to_string();
  EXPECT_NE(status.message().find("upgrade"), std::string::npos) << status.to_string();
}

INSTANTIATE_TEST_SUITE_P(Everything, RunAssetsAskForAnUpgrade,
                         testing::Values(OtherProgram{"Format", [](RunSpec& spec) { spec.hub_format = 2; }},
                                         OtherProgram{"Arithmetic", [](RunSpec& spec) { spec.arithmetic = 2; }},
                                         OtherProgram{"ScaleGroup", [](RunSpec& spec) { spec.scale_group = 32; }},
                                         OtherProgram{"Environment",
                                                      [](RunSpec& spec) { spec.environment_digest = sha256("x"); }}),
                         [](const auto& info) { return info.param.name; });

TEST(RunAssets, OfAnUnknownEnvironmentAreRefused) {
  ToyRun run([](RunSpec& spec) { spec.environment_name = "chess"; });
  EXPECT_EQ(run.assets().status().code(), StatusCode::kInvalidArgument);
}

TEST(RunAssets, OfNoRunAreNotFound) {
  ToyRun run;
  run.layout.prefix = "owner/nothing";
  EXPECT_EQ(run.assets().status().code(), StatusCode::kNotFound);
}

}  // namespace
}  // namespace flotilla
