#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/ids.h"
#include "base/status.h"
#include "model/grid.h"
#include "rollout/group.h"
#include "sync/head.h"
#include "sync/publisher.h"

namespace flotilla {

struct ReceivedGroup {
  Group group;
  Bytes file;  // as it came; what a checkpoint keeps
};

struct RefusedGroup {
  std::string name;    // the group's id, or where it lies when it cannot be read
  std::string worker;  // empty when unknown
  std::string reason;
};

struct RolloutPoll {
  std::vector<ReceivedGroup> groups;  // valid: they pass validate_group()
  std::vector<RefusedGroup> refused;  // each is reported once
};

// Where the learner's groups come from. It knows neither hub nor fleet. One thread.
class RolloutSource {
 public:
  virtual ~RolloutSource() = default;
  // Groups whose oldest version is at least `oldest` and which are new: not returned or refused before, and not
  // `known`. Those of versions that were given up by going back, seen from `newest`, are refused. An error is for the
  // caller to report; the next poll tries again, and nothing is lost.
  virtual Result<RolloutPoll> poll(Version oldest, Version newest,
                                   const std::function<bool(const GroupId&)>& known) = 0;
};

struct SnapshotVersion {
  Version version;
  Sha256Digest state;
  Generation generation;  // of the learner that holds the run now
};

// Where the learner's weights go, beside the training. One thread calls.
class SnapshotSink {
 public:
  virtual ~SnapshotSink() = default;
  // Begins to publish, one attempt, and returns at once. The next may begin when finished() has told of this one.
  virtual void begin(std::shared_ptr<const GridState> state, std::uint64_t optimizer_step) = 0;
  // What became of the attempt, told once; nullopt while it is under way. As Publisher: errors that can be tried again,
  // with the same state, are unavailable, deadline_exceeded or resource_exhausted (no room); failed_precondition means
  // that a newer learner has taken over.
  virtual std::optional<Result<PublishReport>> finished() = 0;
  // Also while one is under way.
  virtual Status update(RunState state, std::int64_t wanted) = 0;
  // The newest version that readers can see; nullopt before the first.
  virtual Result<std::optional<SnapshotVersion>> newest() = 0;
};

}  // namespace flotilla
