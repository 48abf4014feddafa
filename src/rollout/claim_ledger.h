#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "rollout/claim.h"
#include "store/object_store.h"

namespace flotilla {

// Who may do what, as read from the claims of a run: about one request a block. One thread.
class ClaimLedger {
 public:
  ClaimLedger(ObjectStore& store, HubLayout layout, const TaskOrder& order)
      : store_(store), layout_(std::move(layout)), order_(order) {}

  // Ok when the worker has claimed the block that the counter lies in, as it may: in an epoch before which, or around
  // which where those before were removed, two epochs are claimed as a whole; and, of a block that was free, the first
  // one from its start on. A lease that followed another one counts too: whether that one had run out cannot be seen
  // afterwards. invalid_argument says what is wrong; any other error, that it cannot be told now.
  Status check(const WorkerId& worker, std::uint64_t counter);

 private:
  struct Block {
    std::vector<std::optional<WorkerId>> holders;  // by lease; none: an object that is no claim
    std::map<WorkerId, Status> verdicts;
  };
  Result<std::optional<std::uint64_t>> lease_of(const ClaimId& first, Block& block, const WorkerId& worker);
  Result<std::optional<std::uint64_t>> free_block(std::uint64_t epoch, std::uint64_t first);
  Status check_place(const ClaimId& id, const WorkerId& worker);
  Status check_epoch(std::uint64_t epoch);

  ObjectStore& store_;
  const HubLayout layout_;
  const TaskOrder order_;
  std::map<ClaimId, Block> blocks_;  // by the first lease
  std::set<std::uint64_t> open_;     // epochs that may have been begun
};

}  // namespace flotilla
