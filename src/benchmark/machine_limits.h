#pragma once

#include "base/status.h"
#include "engine/engine.h"

namespace flotilla {

// What the machine can do at most, measured: the yardstick for kernels. Billions a second, of all threads together; a
// multiplication and an addition count one each.
struct MachineLimits {
  Isa isa = Isa::kScalar;
  int threads = 1;
  double int8_operations = 0;  // in dot products of bytes with exact sums
  double fp32_operations = 0;  // in fused multiply-adds
  double read_bytes = 0;       // from memory
  // Seconds until one thread sees what another wrote; 0 with one thread. It says how far apart the host or the system
  // has put them: some 30 ns under one cache, over 100 from one cache to another.
  double handoff_seconds = 0;
};

// Takes about two seconds; each figure is the median of several short runs, but that of the hand-off their best. kAuto:
// the best that the machine has. resource_exhausted without half a gibibyte for the reading.
Result<MachineLimits> measure_limits(int threads, Isa isa);

}  // namespace flotilla
