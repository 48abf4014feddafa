#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "base/bytes.h"
#include "base/hashing.h"
#include "base/ids.h"
#include "learn/trainer.h"
#include "model/grid.h"

namespace flotilla {

inline constexpr int kCheckpointFormat = 1;

// How far a run has come.
struct LearnerProgress {
  std::string run;                    // "<owner>/<run>"
  std::uint64_t warmup_steps = 0;     // taken
  std::uint64_t steps = 0;            // of RL
  std::uint64_t published_steps = 0;  // of them, in the version published last
  std::uint64_t optimizer_steps = 0;  // that AdamW's bias correction counts
  double seconds = 0;                 // of RL, used of the budget
  bool finished = false;              // the run has ended in order

  bool operator==(const LearnerProgress&) const = default;
};

// What a learner needs to go on as if it had not stopped, apart from masters and optimizer.
struct LearnerMemory {
  LearnerProgress progress;
  // Of version 0, and as published last; both missing before version 0.
  std::shared_ptr<const GridState> version0;
  std::shared_ptr<const GridState> grid;
  Bytes replay;                         // ReplayBuffer::serialize()
  std::map<std::string, Bytes> groups;  // group files by id, for those in the buffer
};

// Checkpoints of one run in a folder of their own, numbered by the steps taken; each one file
// (docs/formats/checkpoint.md) that is there whole or not at all. One thread.
class CheckpointFolder {
 public:
  CheckpointFolder(std::filesystem::path folder, const ModelDescription& description, std::int64_t keep)
      : folder_(std::move(folder)), description_(description), keep_(keep) {}

  // Writes a checkpoint and then removes all but the newest `keep`. Returns its size in bytes. On an error the older
  // ones are as they were.
  Result<std::uint64_t> save(const LearnerMemory& memory, const TrainerState& trainer);

  // The newest checkpoint that is whole; those that are not are skipped with a warning. Fills the trainer's tensors,
  // which are untouched unless a checkpoint is returned. nullopt when the folder has none; data_loss when it has some
  // and none is whole; failed_precondition when the newest is of another run, model or a newer format.
  Result<std::optional<LearnerMemory>> load(const std::string& run, TrainerState trainer) const;

  // The checkpoint of this number, whole or an error; else as load().
  Result<LearnerMemory> load(std::uint64_t number, const std::string& run, TrainerState trainer) const;
  // Checkpoints from this number on are none any more: ".abandoned" is added to their names. Returns the numbers. On an
  // error the newest of them are set aside.
  Result<std::vector<std::uint64_t>> set_aside_from(std::uint64_t number);

  // Step numbers, rising. Empty when the folder is missing.
  Result<std::vector<std::uint64_t>> list() const;

 private:
  std::filesystem::path path(std::uint64_t number) const;
  Result<LearnerMemory> read(const std::filesystem::path& path, const std::string& run, TrainerState& trainer) const;

  const std::filesystem::path folder_;
  const ModelDescription description_;
  const std::int64_t keep_;
};

}  // namespace flotilla
