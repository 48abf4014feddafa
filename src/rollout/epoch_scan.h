#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "rollout/claim.h"
#include "store/object_store.h"

namespace flotilla {

// Finds the first block of an epoch that nobody has claimed, from a given one on and around the end, in pages of a
// listing. It ends as soon as it has seen one. Pure: whoever uses it lists.
class EpochScan {
 public:
  EpochScan(const HubLayout& layout, std::uint64_t epoch, std::uint64_t blocks, std::uint64_t first)
      : layout_(layout), epoch_(epoch), blocks_(blocks), first_(first), next_(first) {
    after_ = prefix() + padded(first);
  }

  // What to list next.
  std::string prefix() const { return layout_.claims(epoch_); }
  const std::string& after() const { return after_; }
  std::size_t limit() const { return limit_; }
  // True when the scan has ended.
  bool take(const ListPage& page);
  // Of one that has ended; nothing when every block is claimed.
  std::optional<std::uint64_t> free_block() const { return free_; }

 private:
  bool end(bool free);

  HubLayout layout_;
  std::uint64_t epoch_ = 0;
  std::uint64_t blocks_ = 0;
  std::uint64_t first_ = 0;
  std::uint64_t next_ = 0;  // all from first_ to before it are claimed
  bool around_ = false;
  std::string after_;
  std::size_t limit_ = 100;  // a gap is near, most of the time; and then it is not
  std::optional<std::uint64_t> free_;
};

}  // namespace flotilla
