#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "base/bytes.h"
#include "base/ids.h"

namespace flotilla {

struct ReplayLimits {
  std::int64_t batch_groups = 32;
  std::int64_t wanted_groups = 64;  // never-used groups beyond one batch that the fleet is asked for
  std::int64_t max_staleness = 3;   // versions
  std::int64_t max_reuse = 3;       // steps
  bool sequential = false;          // only groups made by exactly the newest version
  std::int64_t capacity = 4096;     // groups held; bounds memory whatever the fleet sends
};

// What the buffer knows of a group; the group itself is kept by whoever asks.
struct ReplayGroup {
  GroupId id;
  WorkerId worker;
  std::uint64_t counter = 0;  // the worker's how-manieth group
  Version oldest;             // version that produced a token of it
  Version newest;
  std::int32_t reuse = 0;     // steps that have trained on it, on this lineage
  std::uint64_t arrival = 0;  // the buffer's own count

  bool operator==(const ReplayGroup&) const = default;
};

enum class Admission {
  kAdmitted,
  kDuplicate,     // admitted before: delivered twice counts once
  kStale,         // older than max_staleness
  kFuture,        // of a version that was not published
  kOtherVersion,  // sequential: not of exactly the newest version
  kFull,
};
std::string_view admission_name(Admission admission);

// Which groups to train on. A pure state machine: what arrives, and which version is the newest, are arguments;
// `newest` never goes back between calls. Not thread safe.
//
// A group may be drawn while newest - oldest <= max_staleness and reuse < max_reuse. A batch is batch_groups groups or
// none: never-used ones first, the newest of them first; then those used least, the newest of them first. In sequential
// mode the order is that of the workers' counters, so that it doesn't depend on when groups arrived.
class ReplayBuffer {
 public:
  explicit ReplayBuffer(const ReplayLimits& limits) : limits_(limits) {}
  const ReplayLimits& limits() const { return limits_; }

  // Takes the group in, or says why not. An id is admitted once in the life of the buffer, checkpoints included.
  Admission admit(ReplayGroup group, Version newest);
  bool knows(const GroupId& id) const { return known_.contains(id); }

  // The next batch, or nullopt when fewer than batch_groups groups are eligible. Changes nothing: a step that fails has
  // used nobody.
  std::optional<std::vector<GroupId>> draw(Version newest) const;
  // A step has trained on these groups, which a draw has returned. Returns those that are used up and have left.
  std::vector<GroupId> consume(const std::vector<GroupId>& ids);
  // Removes and returns the groups that have become too old.
  std::vector<ReplayGroup> expire(Version newest);

  const ReplayGroup& at(const GroupId& id) const { return groups_.at(id); }
  std::int64_t staleness(const GroupId& id, Version newest) const;
  std::int64_t size() const { return static_cast<std::int64_t>(groups_.size()); }
  std::int64_t eligible(Version newest) const;
  std::int64_t never_used(Version newest) const;
  // How many groups the fleet should still make: what is missing to one batch and wanted_groups more, all never used.
  // In sequential mode, what is missing to the batch of the newest version.
  std::int64_t wanted(Version newest) const;
  std::vector<ReplayGroup> groups() const;

  // The whole state, for checkpoints (docs/formats/checkpoint.md); limits are not part of it. Strict: anything that
  // serialize does not write is data_loss.
  Bytes serialize() const;
  static Result<ReplayBuffer> restore(const ReplayLimits& limits, ByteSpan bytes);

 private:
  bool is_eligible(const ReplayGroup& group, Version newest) const;
  bool comes_before(const ReplayGroup& a, const ReplayGroup& b) const;

  ReplayLimits limits_;
  std::map<GroupId, ReplayGroup> groups_;
  std::unordered_set<GroupId> known_;  // every id that was ever admitted
  std::uint64_t arrivals_ = 0;
};

}  // namespace flotilla
