#include "rollout/claim_ledger.h"

#include <fmt/format.h>

#include "rollout/epoch_scan.h"
#include "sync/store_access.h"

namespace flotilla {
namespace {

constexpr std::size_t kBlocksMax = 65'536;  // remembered
constexpr int kWholeEpochs = 2;             // that say that the next one has been begun

}  // namespace

Status ClaimLedger::check(const WorkerId& worker, std::uint64_t counter) {
  const ClaimId first{order_.epoch_of(counter), order_.block_of(counter), 0};
  while (blocks_.size() >= kBlocksMax) blocks_.erase(blocks_.begin());
  Block& block = blocks_[first];
  if (const auto known = block.verdicts.find(worker); known != block.verdicts.end()) return known->second;
  FLOTILLA_ASSIGN_OR_RETURN(const auto lease, lease_of(first, block, worker));
  const std::string place = fmt::format("block {} of epoch {}", first.block, first.epoch);
  // No verdict: it may claim it yet, after another one's lease.
  if (!lease) return invalid_argument(fmt::format("{} is not claimed by this worker", place));
  Status status = check_epoch(first.epoch);
  if (status.ok() && *lease == 0) status = check_place(first, worker);
  if (status.ok() || status.code() == StatusCode::kInvalidArgument) block.verdicts[worker] = status;
  return status;
}

Result<std::optional<std::uint64_t>> ClaimLedger::lease_of(const ClaimId& first, Block& block, const WorkerId& worker) {
  for (std::uint64_t lease = 0; lease < kLeasesMax; ++lease) {
    if (lease == block.holders.size()) {
      const ClaimId id{first.epoch, first.block, lease};
      const auto bytes = read_small(store_, claim_key(layout_, id), kClaimBytesMax);
      if (bytes.status().code() == StatusCode::kNotFound) break;
      if (!bytes.ok() && bytes.status().code() != StatusCode::kDataLoss) return bytes.status();
      auto holder = bytes.ok() ? claim_holder(as_text(*bytes), layout_.prefix, id) : Result<WorkerId>(bytes.status());
      block.holders.push_back(holder.ok() ? std::optional(*std::move(holder)) : std::nullopt);
    }
    if (block.holders[lease] == worker) return std::optional(lease);
  }
  return std::optional<std::uint64_t>();
}

Result<std::optional<std::uint64_t>> ClaimLedger::free_block(std::uint64_t epoch, std::uint64_t first) {
  EpochScan scan(layout_, epoch, order_.blocks(), first);
  while (true) {
    FLOTILLA_ASSIGN_OR_RETURN(const ListPage page, store_.list(scan.prefix(), scan.after(), scan.limit()));
    if (scan.take(page)) return scan.free_block();
  }
}

Status ClaimLedger::check_place(const ClaimId& id, const WorkerId& worker) {
  const std::uint64_t first = order_.first_block(id.epoch, worker);
  // It was the first free one, so all before it are claimed.
  const auto distance = [&](std::uint64_t block) { return (block + order_.blocks() - first) % order_.blocks(); };
  FLOTILLA_ASSIGN_OR_RETURN(const auto free, free_block(id.epoch, first));
  if (!free || distance(*free) > distance(id.block)) return ok_status();
  return invalid_argument(fmt::format("block {} of epoch {} was claimed while block {} was free, which comes before it",
                                      id.block, id.epoch, *free));
}

// The epochs that end before this one are claimed as a whole, down to one that is known to have been begun: two of them
// are enough, as the lower ones may have been removed. An epoch goes when the next three have been begun, so where one
// of the two is gone, those from this one on make up for it. No name on the hub says which epoch is the lowest one: any
// worker may write a claim of a removed one.
Status ClaimLedger::check_epoch(std::uint64_t epoch) {
  int whole = 0;
  std::uint64_t first = epoch;  // of those that are whole
  std::optional<std::uint64_t> free;
  while (whole < kWholeEpochs && first > 0 && !open_.contains(first)) {
    FLOTILLA_ASSIGN_OR_RETURN(free, free_block(first - 1, 0));
    if (free) break;
    --first;
    ++whole;
  }
  if (free) {
    for (std::uint64_t next = epoch; whole < kWholeEpochs; ++next) {
      FLOTILLA_ASSIGN_OR_RETURN(const auto above, free_block(next, 0));
      if (!above) {
        ++whole;
      } else if (next > epoch || whole > 0) {  // else: this one may be half removed itself
        return invalid_argument(
            fmt::format("epoch {} was begun while block {} of epoch {} was free", epoch, *free, first - 1));
      }
    }
  }
  while (open_.size() >= kBlocksMax) open_.erase(open_.begin());
  open_.insert(epoch);
  return ok_status();
}

}  // namespace flotilla
