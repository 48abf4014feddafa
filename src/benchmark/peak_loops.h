#pragma once

#include <cstdint>

namespace flotilla {

// Loops that do nothing but arithmetic, with enough independent chains to fill the pipes. One object a way of doing it;
// several ways may exist, and the fastest is the peak. Like the kernels: plain pointers, no library code.
struct PeakLoop {
  std::int64_t operations_a_round = 0;  // a multiplication and an addition count one each
  void (*run)(std::int64_t rounds) = nullptr;
};

struct PeakLoops {
  PeakLoop int8[2];  // dot products of bytes with exact sums; the second may be missing
  PeakLoop fp32;     // fused multiply-adds
  // Reads `bytes` (a multiple of 4096) from aligned memory. The result depends on all of them.
  std::uint64_t (*read)(const std::uint8_t* from, std::int64_t bytes) = nullptr;
};

PeakLoops scalar_peak_loops();
PeakLoops avx2_peak_loops();
PeakLoops avx_vnni_peak_loops();
PeakLoops avx512_peak_loops();
PeakLoops amx_peak_loops();
PeakLoops neon_peak_loops();
PeakLoops neon_dot_peak_loops();

enum class Isa;                    // engine/engine.h
PeakLoops peak_loops_of(Isa isa);  // one that supported_isas() lists

}  // namespace flotilla
