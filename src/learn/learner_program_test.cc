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

  Status dry_run() { return run({"--dry-run"}); }
  // Until there is to be a trainer.
  Status start(const std::vector<std::string>& more = {}) { return run(more); }

  fs::path link() const { return learner_link(hub_.string(), "ada/demo"); }
  // As a learner with this folder has left it.
  void link_to(const fs::path& other) {
    fs::create_directories(link().parent_path());
    fs::create_directory_symlink(other, link());
  }

  const TemporaryFolder folder_;
  const fs::path hub_ = folder_.path() / "hub";
  const fs::path run_ = folder_.path() / "run";
  const fs::path other_ = folder_.path() / "other";

 private:
  Status run(const std::vector<std::string>& more) {
    std::vector<std::string> arguments = {
        "--run.name",   "ada/demo",    "--run.hub",      hub_.string(),
        "--run.folder", run_.string(), "--model.source", (folder_.path() / "model").string()};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const MakeTrainer none = [](const auto&, const auto&) -> Result<std::unique_ptr<Trainer>> {
      return internal_error("nobody trains here");
    };
    return run_learner_program(arguments, none, {});
  }
};

TEST_F(LearnerProgramTest, ADryRunLeavesNothing) {
  const Status status = dry_run();
  ASSERT_TRUE(status.ok()) << status.to_string();
  std::vector<std::string> left;
  for (const auto& entry : fs::directory_iterator(folder_.path())) left.push_back(entry.path().filename().string());
  EXPECT_EQ(left, std::vector<std::string>{"model"});
}

TEST_F(LearnerProgramTest, ARunSaysOnTheHubWhetherItsWorkersClaimTasks) {
  const auto spec = [&] { return read_text_file(hub_ / "ada/demo/run.json").value(); };
  (void)start();
  EXPECT_THAT(spec(), testing::Not(HasSubstr("claims")));
  fs::remove_all(hub_);
  (void)start({"--rollout.claims", "true"});
  EXPECT_THAT(spec(), HasSubstr("\"claims\":64,"));
}

TEST_F(LearnerProgramTest, ARunThatIsTrainedInAnotherFolderIsNotBegunAnew) {
  ASSERT_TRUE(write_file_atomically(other_ / "checkpoints" / "0000000005.safetensors", "five steps").ok());
  link_to(other_);
  EXPECT_TRUE(dry_run().ok()) << "the hub has nothing of it";
  const auto store = open_directory_store(hub_, true).value();
  ASSERT_TRUE(store->put(HubLayout{"ada/demo"}.head(), as_bytes("{}")).ok());
  const Status refused = dry_run();
  EXPECT_EQ(refused.code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(refused.message(), HasSubstr("has its checkpoints in " + other_.string()));
}

TEST_F(LearnerProgramTest, AHubThatCannotBeReadMayHaveTheRun) {
  ASSERT_TRUE(write_file_atomically(other_ / "checkpoints" / "0000000005.safetensors", "five steps").ok());
  link_to(other_);
  const fs::path head = hub_ / HubLayout{"ada/demo"}.head();
  fs::create_directories(head.parent_path());
  fs::create_symlink(other_ / "head", head);
  EXPECT_EQ(start().code(), StatusCode::kPermissionDenied);
  EXPECT_EQ(fs::read_symlink(link()), other_);
}

TEST_F(LearnerProgramTest, OnlyALearnerWhoseRunIsOnTheHubIsFoundByIt) {
  link_to(other_);
  ASSERT_TRUE(write_file_atomically(hub_, "no folder").ok());
  EXPECT_FALSE(start().ok());
  EXPECT_EQ(fs::read_symlink(link()), other_);
  fs::remove(hub_);
  EXPECT_EQ(start().code(), StatusCode::kInternal) << "it gets as far as the trainer";
  EXPECT_EQ(fs::read_symlink(link()), run_);
}

}  // namespace
}  // namespace flotilla
