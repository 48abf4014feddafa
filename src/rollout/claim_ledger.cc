#include "rollout/claim_ledger.h"

#include <fmt/format.h>

#include "rollout/epoch_scan.h"

namespace flotilla {
namespace {

constexpr std::uint64_t kLeasesMax = 64;    // of a block that are looked at
constexpr std::size_t kLowestKeys = 100;    // among which the lowest epoch is looked for
constexpr std::size_t kBlocksMax = 65'536;  // remembered
constexpr int kEpochsAtOnce = 64;           // looked at in one call

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
      const auto object = store_.get(claim_key(layout_, id));
      if (object.status().code() == StatusCode::kNotFound) break;
      FLOTILLA_RETURN_IF_ERROR(object.status());
      auto holder = claim_holder(as_text(object->bytes), layout_.prefix, id);
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

Result<std::uint64_t> ClaimLedger::lowest_epoch() {
  FLOTILLA_ASSIGN_OR_RETURN(const ListPage page, store_.list(layout_.claims(), {}, kLowestKeys));
  for (const ObjectInfo& object : page.objects) {
    if (const auto name = read_claim_key(layout_, object.key)) return name->id.epoch;
  }
  return unavailable("the claims are gone");
}

Status ClaimLedger::check_epoch(std::uint64_t epoch) {
  if (!open_) {
    FLOTILLA_ASSIGN_OR_RETURN(open_, lowest_epoch());
  }
  for (int looked = 0; *open_ < epoch; ++looked) {
    if (looked == kEpochsAtOnce) return unavailable(fmt::format("epoch {} is far ahead", epoch));
    FLOTILLA_ASSIGN_OR_RETURN(const auto free, free_block(*open_, 0));
    if (!free) {
      ++*open_;
      continue;
    }
    // Old epochs are removed.
    FLOTILLA_ASSIGN_OR_RETURN(const std::uint64_t lowest, lowest_epoch());
    // The lowest one may be half removed; then the next one is long over.
    if (lowest == *open_ && *open_ + 1 < epoch) {
      FLOTILLA_ASSIGN_OR_RETURN(const auto next, free_block(*open_ + 1, 0));
      if (!next) {
        ++*open_;
        continue;
      }
    }
    if (lowest <= *open_) {
      return invalid_argument(
          fmt::format("epoch {} was begun while block {} of epoch {} was free", epoch, *free, *open_));
    }
    open_ = lowest;
  }
  return ok_status();
}

}  // namespace flotilla
