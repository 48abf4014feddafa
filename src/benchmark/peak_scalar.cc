#include <cmath>
#include <cstring>

#include "benchmark/peak_loops.h"

// What the compiler makes of plain loops for a processor without the vector files.
namespace flotilla {
namespace {

constexpr int kChains = 8;

void dot(std::int64_t rounds) {
  std::int32_t sums[kChains] = {};
  std::int16_t a[kChains] = {3, 3, 3, 3, 3, 3, 3, 3}, b = -5;
  for (std::int64_t i = 0; i < rounds; ++i) {
    asm volatile("" : "+m"(a), "+m"(b));
    for (int k = 0; k < kChains; ++k) sums[k] += a[k] * b;
  }
  for (std::int32_t& sum : sums) asm volatile("" : "+m"(sum));
}

void multiply_add(std::int64_t rounds) {
  float sums[kChains] = {};
  float a = 1.0f, b = 0.5f;
  for (std::int64_t i = 0; i < rounds; ++i) {
    asm volatile("" : "+m"(a), "+m"(b));
    for (float& sum : sums) sum = sum * a + b;
  }
  for (float& sum : sums) asm volatile("" : "+m"(sum));
}

std::uint64_t read(const std::uint8_t* from, std::int64_t bytes) {
  std::uint64_t sums[8] = {};
  for (std::int64_t i = 0; i < bytes; i += 64) {
    for (int k = 0; k < 8; ++k) {
      std::uint64_t word;
      std::memcpy(&word, from + i + 8 * k, sizeof(word));
      sums[k] ^= word;
    }
  }
  std::uint64_t all = 0;
  for (const std::uint64_t sum : sums) all ^= sum;
  return all;
}

}  // namespace

PeakLoops scalar_peak_loops() {
  PeakLoops loops;
  loops.int8[0] = {2 * kChains, dot};
  loops.fp32 = {2 * kChains, multiply_add};
  loops.read = read;
  return loops;
}

}  // namespace flotilla
