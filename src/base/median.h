#pragma once

#include <algorithm>
#include <vector>

namespace flotilla {

// The upper one of the two in the middle when their number is even; 0 without values.
template <typename T>
T median(std::vector<T> values) {
  if (values.empty()) return T{};
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace flotilla
