#pragma once

#include <cstdint>

namespace flotilla {

// What AMX's ldtilecfg reads: rows and bytes a row of the eight tiles. Intel's manual, volume 1, chapter 18.
struct alignas(64) TileShapes {
  std::uint8_t palette = 1;
  std::uint8_t start_row = 0;
  std::uint8_t reserved[14] = {};
  std::uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

}  // namespace flotilla
