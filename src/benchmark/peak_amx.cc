#include "benchmark/peak_loops.h"

#if defined(__AMX_INT8__)

#include "engine/tile_shapes.h"

namespace flotilla {
namespace {

// 16 x 16 dot products of 64 bytes each; what the tiles hold does not matter.
void dot_tiles(std::int64_t rounds) {
  const TileShapes shapes;
  asm volatile("ldtilecfg %0" ::"m"(shapes));
  for (std::int64_t i = 0; i < rounds; ++i) {
    asm volatile("tdpbssd %tmm6, %tmm4, %tmm0");
    asm volatile("tdpbssd %tmm7, %tmm4, %tmm1");
    asm volatile("tdpbssd %tmm6, %tmm5, %tmm2");
    asm volatile("tdpbssd %tmm7, %tmm5, %tmm3");
  }
  asm volatile("tilerelease");
}

}  // namespace

PeakLoops amx_peak_loops() {
  PeakLoops loops = avx512_peak_loops();
  loops.int8[1] = {4 * 2 * 16 * 16 * 64, dot_tiles};
  return loops;
}

}  // namespace flotilla

#else

namespace flotilla {
PeakLoops amx_peak_loops() { return {}; }  // never asked for: supported_isas() lists what the machine has
}  // namespace flotilla

#endif
