#pragma once

#include <array>
#include <string_view>

#include "config/field.h"

namespace flotilla {

// When the workers of a run take a new version's weights.
enum class WeightSwap {
  kDrain,      // after the groups under way: a group is of one version
  kRecompute,  // under running episodes, whose keys and values are computed again
  kKeep,       // the same, and they keep those of the older weights
};
template <>
inline constexpr std::array<std::string_view, 3> enum_names<WeightSwap> = {"drain", "recompute", "keep"};

}  // namespace flotilla
