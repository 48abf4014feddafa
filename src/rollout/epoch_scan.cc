#include "rollout/epoch_scan.h"

namespace flotilla {

bool EpochScan::end(bool free) {
  if (free) free_ = next_;
  return true;
}

bool EpochScan::take(const ListPage& page) {
  limit_ = 1000;
  const std::uint64_t last = around_ ? first_ : blocks_;  // one past
  for (const ObjectInfo& object : page.objects) {
    const auto name = read_claim_key(layout_, object.key);
    if (!name || name->done_by || name->id.lease != 0) continue;
    if (name->id.block < next_) continue;
    if (name->id.block > next_ || next_ == last) break;
    ++next_;
  }
  // A page that ended at a gap, or beyond what is asked for, has ended the scan.
  const auto behind = page.objects.empty() ? std::nullopt : read_claim_key(layout_, page.objects.back().key);
  const bool seen = page.next.empty() || (behind && behind->id.block > next_);
  if (next_ < last && seen) return end(true);
  if (next_ < last) {
    after_ = page.next;
    return false;
  }
  if (around_ || first_ == 0) return end(false);
  around_ = true;
  next_ = 0;
  after_.clear();
  return false;
}

}  // namespace flotilla
