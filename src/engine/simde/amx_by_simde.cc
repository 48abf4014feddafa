// kernels_amx.cc once more, with tiles and AVX-512 instructions emulated.
#include "engine/simde/emulated_avx512.h"

namespace {

struct EmulatedTile {
  int rows = 0;
  std::int8_t bytes[16][64] = {};
};
thread_local EmulatedTile tiles[8];

template <typename Shapes>
void tile_shapes(const Shapes& shapes) {
  for (int i = 0; i < 8; ++i) tiles[i] = {.rows = shapes.rows[i]};
}
void tile_release() {
  for (EmulatedTile& tile : tiles) tile = {};
}
template <int kTile>
void tile_zero() {
  std::memset(tiles[kTile].bytes, 0, sizeof(tiles[kTile].bytes));
}
template <int kTile>
void tile_load(const void* from, std::int64_t stride) {
  for (int r = 0; r < tiles[kTile].rows; ++r) {
    std::memcpy(tiles[kTile].bytes[r], static_cast<const char*>(from) + r * stride, 64);
  }
}
template <int kTile>
void tile_store(void* to, std::int64_t stride) {
  for (int r = 0; r < tiles[kTile].rows; ++r) {
    std::memcpy(static_cast<char*>(to) + r * stride, tiles[kTile].bytes[r], 64);
  }
}
template <int kSums, int kA, int kB>
void tile_dot() {
  for (int r = 0; r < tiles[kSums].rows; ++r) {
    std::int32_t sums[16];
    std::memcpy(sums, tiles[kSums].bytes[r], 64);
    for (int n = 0; n < 16; ++n) {
      for (int k = 0; k < 64; ++k) sums[n] += tiles[kA].bytes[r][k] * tiles[kB].bytes[k / 4][4 * n + k % 4];
    }
    std::memcpy(tiles[kSums].bytes[r], sums, 64);
  }
}

}  // namespace

#define avx512_kernels emulated_avx512_kernels
#define amx_kernels emulated_amx_kernels
#include "engine/kernels_amx.cc"
