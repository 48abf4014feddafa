#pragma once

#include <algorithm>
#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/ids.h"
#include "base/status.h"
#include "sync/hub_layout.h"
#include "sync/run_spec.h"
#include "sync/signing.h"

namespace flotilla {

// The order of the tasks of a run with claims (docs/formats/claims.md). An epoch is one pass over all training tasks,
// by a permutation of its own, cut into blocks; a group's counter is its place in the endless row of epochs. Nothing in
// it is chosen by a worker.
struct TaskOrder {
  std::uint64_t seed = 0;         // of the run
  std::uint64_t tasks = 0;        // > 0
  std::uint64_t block_tasks = 0;  // RunSpec::claims; the last block of an epoch may have fewer

  std::uint64_t blocks() const { return (tasks + block_tasks - 1) / block_tasks; }
  std::uint64_t size(std::uint64_t block) const { return std::min(block_tasks, tasks - block * block_tasks); }
  std::uint64_t epoch_of(std::uint64_t counter) const { return counter / tasks; }
  std::uint64_t block_of(std::uint64_t counter) const { return counter % tasks / block_tasks; }
  std::uint64_t index_of(std::uint64_t counter) const { return counter % tasks % block_tasks; }
  std::uint64_t counter(std::uint64_t epoch, std::uint64_t block, std::uint64_t index) const {
    return epoch * tasks + block * block_tasks + index;
  }
  std::uint64_t task(std::uint64_t counter) const;
  // Where the worker begins to look for a free block of the epoch: it takes the first one from there on, around the
  // end.
  std::uint64_t first_block(std::uint64_t epoch, const WorkerId& worker) const;
};

TaskOrder task_order(const RunSpec& spec, std::uint64_t tasks);
// The training task that the run assigns to this worker's counter: of its order with claims, else assigned_task().
std::uint64_t run_task(const RunSpec& spec, const WorkerId& worker, std::uint64_t counter, std::uint64_t tasks);

inline constexpr std::size_t kClaimBytesMax = 1024;
inline constexpr std::uint64_t kLeasesMax = 64;  // of a block; those beyond count for nobody

// One lease of a block: from 0, the next one when the one before has run out.
struct ClaimId {
  std::uint64_t epoch = 0;
  std::uint64_t block = 0;
  std::uint64_t lease = 0;
  auto operator<=>(const ClaimId&) const = default;
};

// The object of a claim, and the one that says that its block is done.
std::string claim_key(const HubLayout& layout, const ClaimId& id);
std::string done_key(const HubLayout& layout, const ClaimId& id, const WorkerId& worker);

// What a key below claims/ says: that the block is claimed, or that `done_by` has done it.
struct ClaimName {
  ClaimId id;
  std::optional<WorkerId> done_by = {};
};
// Nothing for a key that nobody of ours writes.
std::optional<ClaimName> read_claim_key(const HubLayout& layout, std::string_view key);

// Signed JSON of kind "claim": the same claim of the same worker has the same bytes.
std::string claim_to_json(const std::string& run, const ClaimId& id, const SigningKey& worker);
// Who holds the claim. data_loss or permission_denied: nobody; the object is not what its key says.
Result<WorkerId> claim_holder(std::string_view text, const std::string& run, const ClaimId& id);

}  // namespace flotilla
