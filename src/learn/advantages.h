#pragma once

#include <span>
#include <vector>

namespace flotilla {

// A_i = R_i - mean(R) over one group, without division by the standard deviation (Dr. GRPO: Liu et al., "Understanding
// R1-Zero-Like Training", 2025). Exactly 0 for every episode when all rewards are equal: the mean of equal numbers may
// differ from them by rounding, and a group without signal must give none. The rewards are finite.
std::vector<float> advantages(std::span<const double> rewards);

}  // namespace flotilla
