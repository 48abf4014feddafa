#include "engine/kernels.h"

#if defined(__AMX_INT8__) || defined(FLOTILLA_SIMDE)

#if !defined(FLOTILLA_SIMDE)  // else the including file brings the intrinsics and the tiles
#include <immintrin.h>
#endif

#include "engine/tile_shapes.h"

namespace flotilla {
namespace {

// GCC's own intrinsics take literal numbers of tiles only.
#if !defined(FLOTILLA_SIMDE)
inline void tile_shapes(const TileShapes& shapes) { asm volatile("ldtilecfg %0" ::"m"(shapes)); }
inline void tile_release() { asm volatile("tilerelease"); }
template <int kTile>
inline void tile_zero() {
  asm volatile("tilezero %%tmm%c0" ::"n"(kTile));
}
template <int kTile>
inline void tile_load(const void* from, std::int64_t stride) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(stride), "n"(kTile) : "memory");
}
template <int kTile>
inline void tile_store(void* to, std::int64_t stride) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(stride), "n"(kTile) : "memory");
}
// sums[r][n] += a[r][k] * b[k / 4][4 * n + k % 4], signed bytes.
template <int kSums, int kA, int kB>
inline void tile_dot() {
  asm volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"n"(kSums), "n"(kA), "n"(kB));
}
#endif

#include "engine/weight_prefetch.h"

inline constexpr int kTileRows = 16;

// AVX-512's activations are q + 128; tiles take signed ones.
bool quantize(const float* x, std::int64_t n, const QuantizedRows& out, std::int64_t row) {
  static const auto with_offset = avx512_kernels(false).quantize;
  if (!with_offset(x, n, out, row)) return false;
  const __m512i offset = _mm512_set1_epi8(static_cast<char>(-128));
  std::uint8_t* q = out.q + row * out.stride;
  for (std::int64_t g = 0; g < out.groups; ++g, q += kActivationGroup) {
    _mm512_storeu_si512(q, _mm512_xor_si512(_mm512_loadu_si512(q), offset));
  }
  return true;
}

inline __m512 load_bf16(const std::uint16_t* p) {
  const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
}

// The tiles of whole blocks of rows, and of the last block, which may have fewer: sums of two panels, and activations.
// Tiles 6 and 7 are weights.
template <bool kLast>
struct Tiles {
  static constexpr int kSums = kLast ? 2 : 0;
  static constexpr int kRows = kLast ? 5 : 4;
};

template <int kPanel>
struct Panel {};

// `rows` rows, at most 16, times kPanels neighbouring panels. The tile unit works on one group of columns while the
// vector units scale the sums of the group before: the two take about as long.
template <typename Tile, int kPanels>
inline void matmul_block(const PackedMatrix& w, std::int64_t panel, const QuantizedRows& x, int rows, float* out,
                         std::int64_t stride, bool accumulate, Prefetch* prefetch) {
  constexpr std::int64_t kGroupBytes = kActivationGroup * kLanes;
  const std::int64_t groups = w.groups;
  const std::int8_t* q = w.q + panel * groups * kGroupBytes;
  const std::int64_t panel_bytes = groups * kGroupBytes;
  for (int r = 0; r < rows; ++r) {
    for (int p = 0; p < kPanels; ++p) __builtin_prefetch(out + r * stride + p * kLanes, 1, 3);
  }
  alignas(64) std::int32_t dots[kPanels][kTileRows][kLanes];
  alignas(64) float sums[kPanels][kTileRows][kLanes] = {};
  const auto multiply = [&]<int kPanel>(Panel<kPanel>, std::int64_t g) {
    tile_load<6 + kPanel>(q + kPanel * panel_bytes + g * kGroupBytes, kLanes * 4);
    tile_zero<Tile::kSums + kPanel>();
    tile_dot<Tile::kSums + kPanel, Tile::kRows, 6 + kPanel>();
  };
  const auto scale = [&](int p, std::int64_t g) {
    const __m512 weights = load_bf16(w.scales + ((panel + p) * groups + g) * kLanes);
    const float* rows_scale = x.scales + g;
    for (int r = 0; r < rows; ++r) {
      const __m512 both = _mm512_mul_ps(_mm512_set1_ps(rows_scale[r * x.scale_stride]), weights);
      const __m512 dot = _mm512_cvtepi32_ps(_mm512_load_si512(dots[p][r]));
      _mm512_store_ps(sums[p][r], _mm512_fmadd_ps(dot, both, _mm512_load_ps(sums[p][r])));
    }
  };
  tile_load<Tile::kRows>(x.q, x.stride);
  multiply(Panel<0>(), 0);
  if constexpr (kPanels == 2) multiply(Panel<1>(), 0);
  for (std::int64_t g = 0; g < groups; ++g) {
    const bool more = g + 1 < groups;
    tile_store<Tile::kSums>(dots[0], kLanes * 4);
    if constexpr (kPanels == 2) tile_store<Tile::kSums + 1>(dots[1], kLanes * 4);
    if (more) {
      tile_load<Tile::kRows>(x.q + (g + 1) * kActivationGroup, x.stride);
      multiply(Panel<0>(), g + 1);
    }
    prefetch->one_group();
    scale(0, g);
    if constexpr (kPanels == 2) {
      if (more) multiply(Panel<1>(), g + 1);
      scale(1, g);
    }
  }
  for (int r = 0; r < rows; ++r) {
    for (int p = 0; p < kPanels; ++p) {
      float* y = out + r * stride + p * kLanes;
      const __m512 sum = _mm512_load_ps(sums[p][r]);
      _mm512_storeu_ps(y, accumulate ? _mm512_add_ps(_mm512_loadu_ps(y), sum) : sum);
    }
  }
}

template <int kPanels>
inline void matmul_panels(const PackedMatrix& w, std::int64_t panel, const QuantizedRows& x, std::int64_t rows,
                          float* out, std::int64_t stride, bool accumulate) {
  Prefetch prefetch(w.q + (panel + kPanels) * w.groups * kActivationGroup * kLanes, kPanels,
                    (rows + kTileRows - 1) / kTileRows);
  out += panel * kLanes;
  std::int64_t r = 0;
  for (; r + kTileRows < rows; r += kTileRows) {
    matmul_block<Tiles<false>, kPanels>(w, panel, x.from(r), kTileRows, out + r * stride, stride, accumulate,
                                        &prefetch);
  }
  matmul_block<Tiles<true>, kPanels>(w, panel, x.from(r), static_cast<int>(rows - r), out + r * stride, stride,
                                     accumulate, &prefetch);
}

void matmul(const PackedMatrix& w, std::int64_t panel_begin, std::int64_t panel_end, const QuantizedRows& x,
            std::int64_t rows, float* out, std::int64_t stride, bool accumulate) {
  if (rows == 0) return;
  const auto last = static_cast<std::uint8_t>((rows - 1) % kTileRows + 1);
  TileShapes shapes;
  shapes.rows[2] = shapes.rows[3] = shapes.rows[5] = last;
  tile_shapes(shapes);
  std::int64_t panel = panel_begin;
  for (; panel + 2 <= panel_end; panel += 2) matmul_panels<2>(w, panel, x, rows, out, stride, accumulate);
  if (panel < panel_end) matmul_panels<1>(w, panel, x, rows, out, stride, accumulate);
  tile_release();  // or every switch to another thread would save eight kilobytes
}

}  // namespace

// Everything but products of one-byte activations is AVX-512's.
KernelTable amx_kernels(bool two_bytes) {
  KernelTable table = avx512_kernels(two_bytes);
  if (two_bytes) return table;
  table.needs_sums = false;
  table.quantize = quantize;
  table.matmul = matmul;
  return table;
}

}  // namespace flotilla

#else

namespace flotilla {
KernelTable amx_kernels(bool) { return {}; }  // never asked for: isa.cc lists what the machine has
}  // namespace flotilla

#endif
