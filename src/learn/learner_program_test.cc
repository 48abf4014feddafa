#include "learn/learner_program.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "base/files.h"
#include "model/test_models.h"
#include "store/object_store.h"
#include "sync/hub_layout.h"

namespace flotilla {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

class LearnerProgramTest : public testing::Test {
 protected:
  LearnerProgramTest() {
    for (const char* variable : {"XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME"}) {
      ::setenv(variable, (folder_.path() / variable).c_str(), 1);
    }
    const auto tokenizer = Tokenizer::create(tiny_tokenizer_spec()).value();
    EXPECT_TRUE(save_model_folder(folder_.path() / "model", tiny_weights(tiny_description()), *tokenizer).ok());
  }

  Status dry_run() {
    const std::vector<std::string> arguments = {
        "--run.name",   "ada/demo",    "--run.hub",      hub_.string(),
        "--run.folder", run_.string(), "--model.source", (folder_.path() / "model").string(),
        "--dry-run"};
    const MakeTrainer none = [](const auto&, const auto&) -> Result<std::unique_ptr<Trainer>> {
      return internal_error("a dry run trains nothing");
    };
    return run_learner_program(arguments, none, {});
  }

  const TemporaryFolder folder_;
  const fs::path hub_ = folder_.path() / "hub";
  const fs::path run_ = folder_.path() / "run";
};

TEST_F(LearnerProgramTest, ADryRunLeavesNothing) {
  const Status status = dry_run();
  ASSERT_TRUE(status.ok()) << status.to_string();
  std::vector<std::string> left;
  for (const auto& entry : fs::directory_iterator(folder_.path())) left.push_back(entry.path().filename().string());
  EXPECT_EQ(left, std::vector<std::string>{"model"});
}

TEST_F(LearnerProgramTest, ARunThatIsTrainedInAnotherFolderIsNotBegunAnew) {
  const fs::path other = folder_.path() / "other";
  ASSERT_TRUE(write_file_atomically(other / "checkpoints" / "0000000005.safetensors", "five steps").ok());
  const fs::path link = learner_link(hub_.string(), "ada/demo");
  fs::create_directories(link.parent_path());
  fs::create_directory_symlink(other, link);
  EXPECT_TRUE(dry_run().ok()) << "the hub has nothing of it";
  const auto store = open_directory_store(hub_, true).value();
  ASSERT_TRUE(store->put(HubLayout{"ada/demo"}.head(), as_bytes("{}")).ok());
  const Status refused = dry_run();
  EXPECT_EQ(refused.code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(refused.message(), HasSubstr("has its checkpoints in " + other.string()));
}

}  // namespace
}  // namespace flotilla
