// The kernels of arithmetic 1 over vectors of 16 floats, shared by the vector files. The including file defines, in an
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

// A part of an attention: the same few query heads of each row. Query t is of row t / row_queries.
struct AttentionPart {
  static constexpr int kQueries = 32;
  static constexpr int kBlocks = 8;  // that are scored before their values are summed
  static constexpr int kKeys = 16 * kBlocks;

  const float* q[kQueries];
  float* out[kQueries];
  float maxima[kQueries];
  float sums[kQueries];
  alignas(64) float weights[kQueries * kKeys];  // scores of the present blocks, then their exponentials
  // What the sum before a block, and the block's own sum, are multiplied with: lanes b and kBlocks + b.
  alignas(64) float factors[kQueries][2 * kBlocks];
};

// Scores of kQueries heads with kBlocks blocks, each one chain of additions.
template <int kQueries, int kBlocks>
inline void score_tile(const Attention& a, const std::int32_t* table, const float* const* q, float* scores) {
  const std::uint16_t* keys[kBlocks];
  F16 sums[kQueries][kBlocks];
#pragma GCC unroll 4
  for (int b = 0; b < kBlocks; ++b) {
    keys[b] = a.kv + table[b] * a.block_stride;
#pragma GCC unroll 6
    for (int i = 0; i < kQueries; ++i) sums[i][b] = set1(0.0f);
  }
  for (int d = 0; d < a.head_dim; ++d) {
    F16 k[kBlocks];
#pragma GCC unroll 4
    for (int b = 0; b < kBlocks; ++b) {
      k[b] = load_half(keys[b] + 16 * d);
      __builtin_prefetch(keys[b] + 16 * (a.head_dim + d), 0, 2);  // their values
    }
#pragma GCC unroll 6
    for (int i = 0; i < kQueries; ++i) {
      const F16 one = set1(q[i][d]);
#pragma GCC unroll 4
      for (int b = 0; b < kBlocks; ++b) sums[i][b] = fma(one, k[b], sums[i][b]);
    }
  }
  for (int i = 0; i < kQueries; ++i) {
    for (int b = 0; b < kBlocks; ++b) store(scores + i * AttentionPart::kKeys + 16 * b, mul(sums[i][b], set1(a.scale)));
  }
}

// Tiles of kQueries heads and as many blocks as make kChains chains.
template <int kQueries>
inline void score_queries(const Attention& a, const std::int32_t* table, int blocks, const float* const* q,
                          float* scores) {
  constexpr int kWidth = kChains / kQueries < 4 ? kChains / kQueries : 4;
  int b = 0;
  for (; b + kWidth <= blocks; b += kWidth) score_tile<kQueries, kWidth>(a, table + b, q, scores + 16 * b);
  if constexpr (kWidth > 2) {
    for (; b + 2 <= blocks; b += 2) score_tile<kQueries, 2>(a, table + b, q, scores + 16 * b);
  }
  for (; b < blocks; ++b) {
    score_tile<kQueries, 1>(a, table + b, q, scores + 16 * b);
  }
}

// Adds the values of one block's first `count` keys, kQueries heads times kVectors vectors of the head's width.
template <int kQueries, int kVectors>
inline void value_tile(const Attention& a, const std::uint16_t* values, int count, int block, bool first,
                       AttentionPart* part, int query, int d) {
  F16 sums[kQueries][kVectors];
#pragma GCC unroll 6
  for (int i = 0; i < kQueries; ++i) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) sums[i][v] = set1(0.0f);
  }
  for (int j = 0; j < count; ++j) {
    F16 value[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) value[v] = load_half(values + j * a.head_dim + d + 16 * v);
#pragma GCC unroll 6
    for (int i = 0; i < kQueries; ++i) {
      const F16 weight = set1(part->weights[(query + i) * AttentionPart::kKeys + 16 * block + j]);
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) sums[i][v] = fma(weight, value[v], sums[i][v]);
    }
  }
  for (int i = 0; i < kQueries; ++i) {
    const F16 before = set1(part->factors[query + i][block]);
    const F16 now = set1(part->factors[query + i][AttentionPart::kBlocks + block]);
    for (int v = 0; v < kVectors; ++v) {
      float* o = part->out[query + i] + d + 16 * v;
      store(o, first ? sums[i][v] : fma(load(o), before, mul(sums[i][v], now)));
    }
  }
}

template <int kQueries>
inline void add_values(const Attention& a, const std::uint16_t* values, int count, int block, bool first,
                       AttentionPart* part, int query) {
  constexpr int kWidth = kChains / kQueries < 4 ? kChains / kQueries : 4;
  int d = 0;
  for (; d + 16 * kWidth <= a.head_dim; d += 16 * kWidth) {
    value_tile<kQueries, kWidth>(a, values, count, block, first, part, query, d);
  }
  for (; d < a.head_dim; d += 16) value_tile<kQueries, 1>(a, values, count, block, first, part, query, d);
}

// body.operator()<n>(query) for tiles of n queries that cover [begin, end).
template <typename Body>
inline void query_tiles(int begin, int end, const Body& body) {
  for (; end - begin >= 6; begin += 6) body.template operator()<6>(begin);
  for (; end - begin >= 3; begin += 3) body.template operator()<3>(begin);
  if (end - begin == 2) body.template operator()<2>(begin);
  if (end - begin == 1) body.template operator()<1>(begin);
}

// The scores of query t become weights; maximum, sum and factors take the blocks in, in their order. `keys` of them.
inline void soften(AttentionPart* part, int t, int keys, bool first) {
  constexpr int kBlocks = AttentionPart::kBlocks;
  const int blocks = (keys + 15) / 16;
  float maxima[kBlocks];
  float sums[kBlocks];
  for (int b = 0; b < blocks; ++b) {
    float* scores = part->weights + t * AttentionPart::kKeys + 16 * b;
    const int count = keys - 16 * b < 16 ? keys - 16 * b : 16;
    const F16 masked = first_lanes(count, load(scores), set1(-__builtin_inff()));
    maxima[b] = fold_maximum(masked);
    const F16 p = exponential(sub(masked, set1(maxima[b])));
    store(scores, p);
    sums[b] = fold_sum(p);
  }
  float* factors = part->factors[t];
  for (int i = 0; i < 2 * kBlocks; ++i) factors[i] = 0;
  float merged = first ? maxima[0] : part->maxima[t];
  for (int b = 0; b < blocks; ++b) {
    const float next = merged < maxima[b] ? maxima[b] : merged;
    factors[b] = merged - next;
    factors[kBlocks + b] = maxima[b] - next;
    merged = next;
  }
  part->maxima[t] = merged;
  store(factors, exponential(load(factors)));
  float sum = part->sums[t];
  for (int b = 0; b < blocks; ++b) {
    sum = first && b == 0 ? sums[b] : __builtin_fmaf(sum, factors[b], sums[b] * factors[kBlocks + b]);
  }
  part->sums[t] = sum;
}

void attend_part(const Attention& a, int head_begin, int row_queries) {
  constexpr int kBlocks = AttentionPart::kBlocks;
  AttentionPart part;
  std::int32_t keys = 0;
  for (int r = 0; r < a.row_count; ++r) {
    for (int i = 0; i < row_queries; ++i) {
      part.q[r * row_queries + i] = a.rows[r].q + (head_begin + i) * a.head_dim;
      part.out[r * row_queries + i] = a.rows[r].out + (head_begin + i) * a.head_dim;
    }
    keys = keys < a.rows[r].keys ? a.rows[r].keys : keys;
  }
  for (std::int32_t begin = 0; begin < keys; begin += 16 * kBlocks) {
    const bool start = begin == 0;
    // Keys of row r in the present blocks.
    const auto keys_of = [&](int r) {
      const std::int32_t left = a.rows[r].keys - begin;
      return left < 0 ? 0 : left < 16 * kBlocks ? left : 16 * kBlocks;
    };
    const auto block_of = [&](int r, int b) { return a.rows[r].table[begin / 16 + b]; };
    const auto has = [&](int r, int b) { return keys_of(r) > 16 * b; };
    const auto alike = [&](int r, int other, int b) {
      return has(r, b) && has(other, b) && block_of(r, b) == block_of(other, b);
    };
    const auto run_end = [&](int r, int b) {
      int end = r + 1;
      while (end < a.row_count && alike(r, end, b)) ++end;
      return end;
    };

    // The keys of a row, where the row before does not read them.
    const auto fetch_keys = [&](int r) {
      for (int b = 0; b < kBlocks && has(r, b); ++b) {
        if (alike(r - 1, r, b)) continue;
        const std::uint16_t* k = a.kv + block_of(r, b) * a.block_stride;
        for (int i = 0; i < 16 * a.head_dim; i += 32) __builtin_prefetch(k + i, 0, 2);
      }
    };

    // Scores: neighbouring rows and neighbouring blocks at a time, as far as the rows share them.
    for (int r = 0; r < a.row_count; ++r) {
      if (r + 1 < a.row_count) fetch_keys(r + 1);
      for (int b = 0; b < kBlocks && has(r, b);) {
        if (r > 0 && alike(r - 1, r, b)) {
          ++b;
          continue;
        }
        const int end = run_end(r, b);
        int next = b + 1;
        while (next < kBlocks && has(r, next) && !(r > 0 && alike(r - 1, r, next)) && run_end(r, next) == end) ++next;
        query_tiles(r * row_queries, end * row_queries, [&]<int kQueries>(int t) {
          score_queries<kQueries>(a, a.rows[r].table + begin / 16 + b, next - b, part.q + t,
                                  part.weights + t * AttentionPart::kKeys + 16 * b);
        });
        b = next;
      }
    }

    for (int r = 0; r < a.row_count; ++r) {
      if (keys_of(r) == 0) continue;
      for (int i = 0; i < row_queries; ++i) soften(&part, r * row_queries + i, keys_of(r), start);
    }

    // Values: a key beyond a row's end is never multiplied, so rows in one tile have equally many.
    for (int b = 0; b < kBlocks; ++b) {
      const auto count_of = [&](int r) { return keys_of(r) - 16 * b < 16 ? keys_of(r) - 16 * b : 16; };
      for (int r = 0; r < a.row_count;) {
        int end = r + 1;
        if (has(r, b)) {
          while (end < a.row_count && alike(r, end, b) && count_of(end) == count_of(r)) ++end;
          const std::uint16_t* values = a.kv + block_of(r, b) * a.block_stride + 16 * a.head_dim;
          query_tiles(r * row_queries, end * row_queries, [&]<int kQueries>(int t) {
            add_values<kQueries>(a, values, count_of(r), b, start && b == 0, &part, t);
          });
        }
        r = end;
      }
    }
  }
  for (int t = 0; t < a.row_count * row_queries; ++t) {
    const F16 inverse = set1(1.0f / part.sums[t]);
    for (int d = 0; d < a.head_dim; d += 16) store(part.out[t] + d, mul(load(part.out[t] + d), inverse));
  }
}

void attend(const Attention& a) {
  const int most = AttentionPart::kQueries / a.row_count;
  for (int head = 0; head < a.queries; head += most) {
    attend_part(a, head, a.queries - head < most ? a.queries - head : most);
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
