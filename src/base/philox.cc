#include "base/philox.h"

#include "base/status.h"

namespace flotilla {

std::array<std::uint32_t, 4> philox4x32(std::array<std::uint32_t, 4> c, std::array<std::uint32_t, 2> k) {
  // Multipliers and Weyl constants of the paper, table 2 and section 4.3.
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t p0 = std::uint64_t{0xD2511F53} * c[0];
    const std::uint64_t p1 = std::uint64_t{0xCD9E8D57} * c[2];
    c = {static_cast<std::uint32_t>(p1 >> 32) ^ c[1] ^ k[0], static_cast<std::uint32_t>(p1),
         static_cast<std::uint32_t>(p0 >> 32) ^ c[3] ^ k[1], static_cast<std::uint32_t>(p0)};
    k[0] += 0x9E3779B9;
    k[1] += 0xBB67AE85;
  }
  return c;
}

std::uint32_t PhiloxStream::next_u32() {
  if (used_ == 4) {
    words_ = philox4x32({static_cast<std::uint32_t>(block_), static_cast<std::uint32_t>(block_ >> 32),
                         static_cast<std::uint32_t>(stream_), static_cast<std::uint32_t>(stream_ >> 32)},
                        {static_cast<std::uint32_t>(seed_), static_cast<std::uint32_t>(seed_ >> 32)});
    ++block_;
    used_ = 0;
  }
  return words_[used_++];
}

std::uint64_t PhiloxStream::next_u64() {
  const std::uint64_t low = next_u32();
  return low | std::uint64_t{next_u32()} << 32;
}

std::uint64_t PhiloxStream::below(std::uint64_t bound) {
  FLOTILLA_CHECK(bound > 0);
  // Rejects the numbers of the last, incomplete block of `bound`.
  const std::uint64_t limit = -bound % bound;
  for (;;) {
    const std::uint64_t value = next_u64();
    if (value >= limit) return value % bound;
  }
}

double PhiloxStream::uniform() { return static_cast<double>(next_u64() >> 11) * 0x1p-53; }

}  // namespace flotilla
