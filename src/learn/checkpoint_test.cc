#include "learn/checkpoint.h"

#include <fstream>

#include <gtest/gtest.h>

#include "base/files.h"
#include "model/test_models.h"

namespace flotilla {
namespace {

namespace fs = std::filesystem;

class CheckpointTest : public testing::Test {
 protected:
  CheckpointTest() : weights_(tiny_weights(tiny_description())) {
    masters_ = weights_.tensors;
    mean_ = tiny_weights(weights_.description, 2).tensors;
    square_ = tiny_weights(weights_.description, 3).tensors;
  }

  TrainerState state() {
    TrainerState state;
    for (std::size_t i = 0; i < masters_.size(); ++i) {
      state.masters.push_back(masters_[i]);
      state.mean.push_back(mean_[i]);
      state.mean_square.push_back(square_[i]);
    }
    return state;
  }

  LearnerMemory memory(std::uint64_t steps) {
    LearnerMemory memory;
    memory.progress = {.run = "owner/run",
                       .warmup_steps = 2,
                       .steps = steps,
                       .published_steps = steps,
                       .optimizer_steps = steps,
                       .seconds = 1.5};
    memory.version0 = std::make_shared<const GridState>(make_grid(weights_).value());
    memory.grid = std::make_shared<const GridState>(make_grid(tiny_weights(weights_.description, 5)).value());
    memory.replay = to_bytes("replay");
    memory.groups = {{"a", to_bytes("group a")}, {"b", to_bytes("group b")}};
    return memory;
  }

  CheckpointFolder folder(std::int64_t keep = 2) {
    return {folder_.path() / "checkpoints", weights_.description, keep};
  }
  fs::path file(std::uint64_t number) { return folder_.path() / "checkpoints" / (padded(number) + ".safetensors"); }

  void flip(const fs::path& path, std::uint64_t at) {
    Bytes bytes = read_file(path).value();
    bytes.at(at) ^= 1;
    ASSERT_TRUE(write_file_atomically(path, bytes).ok());
  }

  TemporaryFolder folder_;
  ModelWeights weights_;
  std::vector<std::vector<float>> masters_, mean_, square_;
};

TEST_F(CheckpointTest, GivesBackEverything) {
  CheckpointFolder checkpoints = folder();
  const LearnerMemory saved = memory(5);
  ASSERT_GT(checkpoints.save(saved, state()).value(), 0u);
  const auto masters = masters_, mean = mean_, square = square_;
  for (auto* all : {&masters_, &mean_, &square_}) {
    for (auto& tensor : *all) std::fill(tensor.begin(), tensor.end(), 0.0f);
  }
  const auto loaded = checkpoints.load("owner/run", state()).value();
  ASSERT_TRUE(loaded);
  EXPECT_EQ(loaded->progress, saved.progress);
  EXPECT_EQ(*loaded->version0, *saved.version0);
  EXPECT_EQ(*loaded->grid, *saved.grid);
  EXPECT_EQ(loaded->replay, saved.replay);
  EXPECT_EQ(loaded->groups, saved.groups);
  EXPECT_EQ(masters_, masters);
  EXPECT_EQ(mean_, mean);
  EXPECT_EQ(square_, square);
}

TEST_F(CheckpointTest, BeforeVersionZeroThereAreNoGrids) {
  CheckpointFolder checkpoints = folder();
  LearnerMemory saved = memory(0);
  saved.version0 = saved.grid = nullptr;
  ASSERT_TRUE(checkpoints.save(saved, state()).ok());
  const auto loaded = checkpoints.load("owner/run", state()).value();
  EXPECT_EQ(loaded->version0, nullptr);
  EXPECT_EQ(loaded->grid, nullptr);
}

TEST_F(CheckpointTest, KeepsTheNewest) {
  CheckpointFolder checkpoints = folder(2);
  for (const std::uint64_t steps : {1, 2, 3, 4}) ASSERT_TRUE(checkpoints.save(memory(steps), state()).ok());
  EXPECT_EQ(checkpoints.list().value(), (std::vector<std::uint64_t>{5, 6}));
  EXPECT_EQ(checkpoints.load("owner/run", state()).value()->progress.steps, 4u);
}

TEST_F(CheckpointTest, SkipsThoseThatAreNotWhole) {
  CheckpointFolder checkpoints = folder(3);
  for (const std::uint64_t steps : {1, 2, 3}) ASSERT_TRUE(checkpoints.save(memory(steps), state()).ok());
  fs::resize_file(file(5), fs::file_size(file(5)) - 1);
  flip(file(4), fs::file_size(file(4)) - 3);
  EXPECT_EQ(checkpoints.load("owner/run", state()).value()->progress.steps, 1u);
  fs::resize_file(file(3), 0);
  EXPECT_EQ(checkpoints.load("owner/run", state()).status().code(), StatusCode::kDataLoss);
}

TEST_F(CheckpointTest, NoticesAnyChangedBit) {
  CheckpointFolder checkpoints = folder(1);
  ASSERT_TRUE(checkpoints.save(memory(1), state()).ok());
  const Bytes whole = read_file(file(3)).value();
  const auto masters = masters_;
  for (std::size_t at = 8; at < whole.size(); at += 1 + whole.size() / 30) {
    flip(file(3), at);
    EXPECT_FALSE(checkpoints.load("owner/run", state()).ok()) << "byte " << at;
    ASSERT_TRUE(write_file_atomically(file(3), whole).ok());
  }
  EXPECT_EQ(masters_, masters);
}

TEST_F(CheckpointTest, RefusesThoseOfAnotherRunOrModel) {
  CheckpointFolder checkpoints = folder();
  ASSERT_TRUE(checkpoints.save(memory(1), state()).ok());
  EXPECT_EQ(checkpoints.load("owner/other", state()).status().code(), StatusCode::kFailedPrecondition);
  ModelDescription other = weights_.description;
  other.rope_theta = 5;
  EXPECT_EQ(CheckpointFolder(folder_.path() / "checkpoints", other, 2).load("owner/run", state()).status().code(),
            StatusCode::kFailedPrecondition);
}

TEST_F(CheckpointTest, AnEmptyOrMissingFolderHasNone) {
  EXPECT_FALSE(folder().load("owner/run", state()).value());
  fs::create_directories(folder_.path() / "checkpoints");
  std::ofstream(folder_.path() / "checkpoints" / "notes.txt") << "not a checkpoint";
  EXPECT_FALSE(folder().load("owner/run", state()).value());
}

}  // namespace
}  // namespace flotilla
