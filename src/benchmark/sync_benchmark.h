#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/bytes.h"
#include "base/status.h"
#include "model/grid.h"
#include "sync/delta.h"

namespace flotilla {

// Each integer by itself moves by 1 up or down with this chance: changes that nothing foretells.
GridState random_changes(GridState state, double chance, std::uint64_t seed);

// n * H(changed / n) and a bit a change, in bytes: what independent changes of +1 or -1 take at least.
double memoryless_bytes(std::int64_t changed, std::int64_t total);

// What other compressors get. Gaps between the integers that differ, their steps, and new scales likewise, as varints
// in streams of their own; and integers and scales of both states, combined by XOR.
Bytes plain_gaps(const GridState& before, const GridState& after);
Bytes exclusive_or(const GridState& before, const GridState& after);

// Seconds of one thread are the processor's: other programs slow it down less. Those of several are the clock's.
struct DeltaSpeed {
  int threads = 1;
  std::vector<double> encode_seconds;
  std::vector<double> apply_seconds;
};
struct DeltaCost {
  EncodedDelta delta;
  std::int64_t encode_peak_bytes = 0;  // the most memory besides the two states, what comes out included
  std::int64_t apply_peak_bytes = 0;   // and besides the state that changes and the delta
  std::vector<DeltaSpeed> speeds;
};
// Encodes and applies `repeat` times with each number of threads, and once before, with the most of them, for the
// memory. data_loss when anything else than `after` comes out. The peaks are this process's: nothing else may run in
// it.
Result<DeltaCost> measure_delta(const ModelDescription& description, const GridState& before,
                                const DeltaHistory& history, const GridState& after, std::span<const int> threads,
                                int repeat);

struct CompressorCost {
  std::int64_t bytes = 0;
  double seconds = 0;
};
CompressorCost measure_zstd(ByteSpan bytes, int level);

}  // namespace flotilla
