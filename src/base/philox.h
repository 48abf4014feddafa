#pragma once

#include <array>
#include <cstdint>
#include <span>

namespace flotilla {

// Philox 4x32-10, a counter-based generator: Salmon, Moraes, Dror, Shaw, "Parallel Random Numbers: As Easy as 1, 2, 3",
// SC 2011. The same (counter, key) gives the same four words on every machine, so a random number can be named by what
// it is for instead of by when it was drawn.
std::array<std::uint32_t, 4> philox4x32(std::array<std::uint32_t, 4> counter, std::array<std::uint32_t, 2> key);

// A sequence of numbers from one (seed, stream) pair. Not thread safe; copy it to replay.
class PhiloxStream {
 public:
  PhiloxStream(std::uint64_t seed, std::uint64_t stream) : seed_(seed), stream_(stream) {}

  std::uint32_t next_u32();
  std::uint64_t next_u64();
  // Uniform in [0, bound), without bias. bound > 0.
  std::uint64_t below(std::uint64_t bound);
  // Uniform in [0, 1), a multiple of 2^-53.
  double uniform();

 private:
  std::uint64_t seed_;
  std::uint64_t stream_;
  std::uint64_t block_ = 0;
  std::array<std::uint32_t, 4> words_{};
  int used_ = 4;
};

// Fisher-Yates.
template <typename T>
void shuffle(std::span<T> values, PhiloxStream& random) {
  for (std::size_t i = values.size(); i > 1; --i) std::swap(values[i - 1], values[random.below(i)]);
}

}  // namespace flotilla
