#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace flotilla {

// One integer that differs between two versions. Positions count row by row in a region of a tensor (change_coder.h).
struct Change {
  std::uint32_t position = 0;
  std::int32_t step = 0;  // new minus old, never 0

  bool operator==(const Change&) const = default;
};

inline constexpr std::uint32_t kRegionMax = 1u << 27;  // integers of a region

// A change of an earlier version: how many versions ago, from 1 to kHistoryVersions, and whether upwards.
struct PastChange {
  std::uint32_t position : 27 = 0;
  std::uint32_t age : 4 = 0;
  std::uint32_t up : 1 = 0;

  // As files and digests have it: position, then age, then direction, from the low end.
  std::uint32_t bits() const { return position | age << 27 | up << 31; }
  static PastChange of_bits(std::uint32_t bits) { return {bits & (kRegionMax - 1), bits >> 27 & 15, bits >> 31}; }

  bool operator==(const PastChange&) const = default;
};
static_assert(sizeof(PastChange) == 4);
inline constexpr int kHistoryVersions = 15;
inline constexpr std::int64_t kHistoryShare = 32;  // at most one integer of so many of a region is remembered

// What changed lately in one region: the last change of each integer, by rising position. An integer that has crossed a
// border of rounding lies near it and goes back much more often than others cross theirs, so the codec of deltas
// remembers it.
using ChangeHistory = std::vector<PastChange>;

// The history one version later: changes come in with age 1, those that get too old leave; the oldest too, whole
// versions at a time, while more than one in kHistoryShare of the region's integers is remembered: an eighth of a byte
// an integer at most.
ChangeHistory advance(const ChangeHistory& history, std::span<const Change> changes, std::int64_t integers);

}  // namespace flotilla
