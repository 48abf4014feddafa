#include "cli/inference_subject.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "base/files.h"
#include "model/published_sizes.h"
#include "rollout/run_for_tests.h"

namespace flotilla {
namespace {

using testing::HasSubstr;

TEST(InferenceSubject, EveryVersionOfARunIsFoundOnItsHub) {
  const TemporaryFolder folder;
  ASSERT_EQ(::setenv("XDG_CACHE_HOME", (folder.path() / "cache").c_str(), 1), 0);
  ToyRun run;
  for (int version = 0; version < 3; ++version) run.publish();
  const std::string hub = (folder.path() / "hub").string();
  const auto store = open_directory_store(hub, true).value();
  const std::vector<ObjectInfo> objects = list_all(*run.store, "").value();
  for (const ObjectInfo& object : objects) {
    ASSERT_TRUE(store->put_if_absent(object.key, run.store->get(object.key).value().bytes).ok());
  }
  const auto open = [&](const std::string& version) {
    return open_inference_subject(SubjectAddress::parse(hub + "/owner/run" + version).value());
  };
  const InferenceSubject newest = open("").value();
  EXPECT_EQ(newest.name, "owner/run@2");
  EXPECT_EQ(newest.version, Version(2));
  InferenceSubject first = open("@0").value();
  EXPECT_EQ(first.name, "owner/run@0");
  GridState version_0 = toy_model().state;
  version_0.tensors[0].q[0] = 0;  // as ToyRun publishes it
  EXPECT_EQ(*first.weights, version_0);
  EXPECT_NE(*newest.weights, *first.weights);
  EXPECT_EQ(open("@7").status().code(), StatusCode::kNotFound);
  const std::weak_ptr<const GridState> weights = first.weights;
  EXPECT_TRUE(make_inference_engine(first, 1, 128, 0).ok());
  EXPECT_TRUE(weights.expired()) << "the engine has its own";
}

TEST(InferenceSubject, AnEngineWithoutRoomForAConversationIsRefused) {
  InferenceSubject subject{.description = toy_model().description,
                           .weights = std::make_shared<const GridState>(toy_model().state),
                           .tokenizer = toy_tokenizer(),
                           .name = "toy",
                           .version = {}};
  EXPECT_EQ(make_inference_engine(subject, 1, 1000, 0).value()->usage().blocks_total, 63);
  // A position of SmolLM2-135M takes 23,040 bytes.
  subject.description = describe_model(kPublishedSizes[0].sizes()).value();
  EXPECT_THAT(make_inference_engine(subject, 1, 1000, 1).status().message(),
              HasSubstr("keys and values of 256 positions take 6 MiB, 1 may be used"));
}

}  // namespace
}  // namespace flotilla
