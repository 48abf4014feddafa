// The kernels of arithmetic 1 over vectors of 16 floats, shared by the x86 files. The including file defines, in an
// anonymous namespace inside flotilla, the type F16 with the operations used below; everything here lands there too.
// No #pragma once: part of one translation unit a file.

F16 exponential(F16 x) {
  using namespace exp_constants;
  const F16 clamped = minimum(set1(kHigh), x);  // NaN stays NaN
  const F16 rounded = fma(clamped, set1(kLog2E), set1(kRound));
  const F16 n = sub(rounded, set1(kRound));
  F16 r = fma(n, set1(-kLn2High), clamped);
  r = fma(n, set1(-kLn2Low), r);
  F16 p = fma(set1(kC6), r, set1(kC5));
  p = fma(p, r, set1(kC4));
  p = fma(p, r, set1(kC3));
  p = fma(p, r, set1(kC2));
  p = fma(p, r, set1(1.0f));
  p = fma(p, r, set1(1.0f));
  return zero_below(x, set1(kLow), add_exponent(p, rounded));
}

void rms_norm(const float* x, const float* weight, std::int64_t n, float epsilon, float* y) {
  F16 squares = set1(0.0f);
  for (std::int64_t i = 0; i < n; i += kLanes) {
    const F16 v = load(x + i);
    squares = fma(v, v, squares);
  }
  const float mean = fold_sum(squares) / static_cast<float>(n);
  const F16 r = set1(1.0f / square_root(mean + epsilon));
  for (std::int64_t i = 0; i < n; i += kLanes) store(y + i, mul(mul(load(x + i), r), load(weight + i)));
}

std::uint32_t largest_bits(const float* x, std::int64_t n) {
  F16 largest = set1(0.0f);
  for (std::int64_t i = 0; i < n; i += kLanes) largest = largest_magnitude(largest, load(x + i));
  return fold_magnitude(largest);
}

// What a group's scale and factor are; false for NaN or infinity.
bool group_factors(std::uint32_t bits, float limit, float* inverse, float* scale) {
  if (bits >= kInfinityBits) return false;
  const float amax = __builtin_bit_cast(float, bits);
  const bool zero = amax < kSmallestAmax;
  *inverse = zero ? 0.0f : limit / amax;
  *scale = zero ? 0.0f : amax / limit;
  return true;
}

void add(float* x, const float* y, std::int64_t n) {
  for (std::int64_t i = 0; i < n; i += kLanes) store(x + i, add(load(x + i), load(y + i)));
}

void rope(float* x, const float* cosines, const float* sines, std::int64_t half) {
  std::int64_t i = 0;
  for (; i + kLanes <= half; i += kLanes) {
    const F16 a = load(x + i);
    const F16 b = load(x + i + half);
    const F16 c = load(cosines + i);
    const F16 s = load(sines + i);
    store(x + i, fma(a, c, negate(mul(b, s))));
    store(x + i + half, fma(b, c, mul(a, s)));
  }
  for (; i < half; ++i) {
    const float a = x[i];
    const float b = x[i + half];
    x[i] = __builtin_fmaf(a, cosines[i], -(b * sines[i]));
    x[i + half] = __builtin_fmaf(b, cosines[i], a * sines[i]);
  }
}

void to_half(const float* x, std::int64_t n, std::uint16_t* out) {
  for (std::int64_t i = 0; i < n; i += kLanes) store_half(out + i, load(x + i));
}

void swiglu(const float* gate, const float* up, std::int64_t n, float* out) {
  for (std::int64_t i = 0; i < n; i += kLanes) {
    const F16 g = load(gate + i);
    const F16 sigmoid = div(g, add(set1(1.0f), exponential(negate(g))));
    store(out + i, mul(sigmoid, load(up + i)));
  }
}

// A block's keys and values, as they lie or widened before.
F16 load_kv(const std::uint16_t* p) { return load_half(p); }
F16 load_kv(const float* p) { return load(p); }

// kQueries heads of a row go through one block together; its first `count` keys are the lanes. `maxima`, `sums` and
// `out` hold what the blocks before gave.
template <int kQueries, typename Value>
void attend_block(const Value* keys, const Value* values, int head_dim, float scale, int count, bool first,
                  const float* q, float* maxima, float* sums, float* out) {
  F16 scores[kQueries];
#pragma GCC unroll 4
  for (int i = 0; i < kQueries; ++i) scores[i] = set1(0.0f);
  for (int d = 0; d < head_dim; ++d) {
    const F16 k = load_kv(keys + 16 * d);
#pragma GCC unroll 4
    for (int i = 0; i < kQueries; ++i) scores[i] = fma(set1(q[i * head_dim + d]), k, scores[i]);
  }

  alignas(64) float weights[kQueries][16];
  float before[kQueries] = {};
  float now[kQueries] = {};
  for (int i = 0; i < kQueries; ++i) {
    const F16 masked = first_lanes(count, mul(scores[i], set1(scale)), set1(-__builtin_inff()));
    const float block_maximum = fold_maximum(masked);
    const F16 p = exponential(sub(masked, set1(block_maximum)));
    store(weights[i], p);
    const float block_sum = fold_sum(p);
    if (first) {
      maxima[i] = block_maximum;
      sums[i] = block_sum;
      continue;
    }
    const float merged = maxima[i] < block_maximum ? block_maximum : maxima[i];
    // Lanes 0 and 1 of one exponential: the factors of what came before and of this block.
    alignas(64) float factors[16] = {maxima[i] - merged, block_maximum - merged};
    store(factors, exponential(load(factors)));
    before[i] = factors[0];
    now[i] = factors[1];
    sums[i] = __builtin_fmaf(sums[i], before[i], block_sum * now[i]);
    maxima[i] = merged;
  }

  for (int d = 0; d < head_dim; d += 16) {
    F16 sum[kQueries];
#pragma GCC unroll 4
    for (int i = 0; i < kQueries; ++i) sum[i] = set1(0.0f);
    for (int j = 0; j < count; ++j) {
      const F16 v = load_kv(values + j * head_dim + d);
#pragma GCC unroll 4
      for (int i = 0; i < kQueries; ++i) sum[i] = fma(set1(weights[i][j]), v, sum[i]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < kQueries; ++i) {
      float* o = out + i * head_dim + d;
      store(o, first ? sum[i] : fma(load(o), set1(before[i]), mul(sum[i], set1(now[i]))));
    }
  }
}

struct AttentionState {
  float maxima[kQueriesMax];
  float sums[kQueriesMax];
};

template <typename Value>
void attend_row(const Attention& a, const AttentionRow& row, std::int32_t begin, const Value* keys,
                AttentionState* state) {
  const Value* values = keys + 16 * a.head_dim;
  const int count = row.keys - begin < 16 ? row.keys - begin : 16;
  int query = 0;
  const auto tile = [&]<int kQueries>() {
    attend_block<kQueries>(keys, values, a.head_dim, a.scale, count, begin == 0, row.q + query * a.head_dim,
                           state->maxima + query, state->sums + query, row.out + query * a.head_dim);
    query += kQueries;
  };
  while (a.queries - query >= 3) tile.template operator()<3>();
  if (a.queries - query == 2) tile.template operator()<2>();
  if (a.queries - query == 1) tile.template operator()<1>();
}

// Block by block; one that neighbouring rows share is widened once for all of them.
void attend(const Attention& a) {
  alignas(64) float wide[2 * 16 * kHeadDimMax];
  AttentionState states[kAttentionRows];
  for (std::int32_t begin = 0;; begin += 16) {
    bool done = true;
    for (int r = 0; r < a.row_count;) {
      if (a.rows[r].keys <= begin) {
        ++r;
        continue;
      }
      done = false;
      const std::int32_t block = a.rows[r].table[begin / 16];
      const std::uint16_t* keys = a.kv + block * a.block_stride;
      int end = r + 1;
      while (end < a.row_count && a.rows[end].keys > begin && a.rows[end].table[begin / 16] == block) ++end;
      if (end - r == 1) {
        attend_row(a, a.rows[r], begin, keys, &states[r]);
        ++r;
        continue;
      }
      for (int i = 0; i < 2 * 16 * a.head_dim; i += 16) store(wide + i, load_half(keys + i));
      for (; r < end; ++r) attend_row<float>(a, a.rows[r], begin, wide, &states[r]);
    }
    if (done) break;
  }
  for (int r = 0; r < a.row_count; ++r) {
    for (int query = 0; query < a.queries; ++query) {
      float* out = a.rows[r].out + query * a.head_dim;
      const F16 inverse = set1(1.0f / states[r].sums[query]);
      for (int d = 0; d < a.head_dim; d += 16) store(out + d, mul(load(out + d), inverse));
    }
  }
}

float maximum(const float* x, std::int64_t n) {
  F16 largest = load(x);
  for (std::int64_t i = kLanes; i < n; i += kLanes) largest = maximum(largest, load(x + i));
  return fold_maximum(largest);
}

ChunkSums chunk_sums(const float* logits, std::int64_t n, float maximum, float temperature) {
  F16 lanes = set1(0.0f);
  I16 highs = zero_integers();
  I16 lows = zero_integers();
  for (std::int64_t i = 0; i < n; i += kLanes) {
    const F16 p = exponential(div(sub(load(logits + i), set1(maximum)), set1(temperature)));
    lanes = add(lanes, p);
    // floor(p * 2^40) in two exact halves of 20 bits; 64 of them fit 32 bits.
    const F16 scaled = mul(p, set1(0x1p20f));
    const I16 high = truncate(scaled);
    highs = add(highs, high);
    lows = add(lows, truncate(mul(sub(scaled, to_float(high)), set1(0x1p20f))));
  }
  return {fold_sum(lanes), (fold_integers(highs) << 20) + fold_integers(lows)};
}

void chunk_weights(const float* logits, std::int64_t n, float maximum, float temperature, std::uint64_t* weights) {
  alignas(64) std::int32_t high[16];
  alignas(64) std::int32_t low[16];
  for (std::int64_t i = 0; i < n; i += kLanes) {
    const F16 scaled = mul(exponential(div(sub(load(logits + i), set1(maximum)), set1(temperature))), set1(0x1p20f));
    const I16 whole = truncate(scaled);
    store(high, whole);
    store(low, truncate(mul(sub(scaled, to_float(whole)), set1(0x1p20f))));
    for (int j = 0; j < 16; ++j) {
      weights[i + j] = (static_cast<std::uint64_t>(high[j]) << 20) + static_cast<std::uint64_t>(low[j]);
    }
  }
}

// The entries that do not depend on the width of an activation.
KernelTable common_kernels() {
  KernelTable table;
  table.rms_norm = rms_norm;
  table.add = add;
  table.largest_bits = largest_bits;
  table.rope = rope;
  table.to_half = to_half;
  table.attend = attend;
  table.swiglu = swiglu;
  table.maximum = maximum;
  table.chunk_sums = chunk_sums;
  table.chunk_weights = chunk_weights;
  return table;
}
