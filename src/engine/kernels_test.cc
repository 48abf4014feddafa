#include "engine/kernels.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include <array>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <limits>

#include "base/thread_pool.h"
#include "engine/engine.h"
#include "engine/float_mode.h"
#include "engine/forward_pass.h"
#include "engine/random_model.h"
#include "engine/sampler.h"

namespace flotilla {

#if defined(__x86_64__)
KernelTable emulated_avx_vnni_kernels(bool two_bytes);  // emulated/avx_vnni.cc
KernelTable emulated_avx512_kernels(bool two_bytes);    // simde/avx512_by_simde.cc
KernelTable emulated_amx_kernels(bool two_bytes);       // simde/amx_by_simde.cc
#endif

namespace {

struct NamedKernels {
  std::string name;
  KernelTable table;
};

// Instructions that this machine may lack are emulated, but not on an emulated processor: that would take minutes, and
// says no more.
bool emulates() { return std::getenv("FLOTILLA_EXPECTED_ISA") == nullptr; }

std::vector<NamedKernels> vector_kernels(bool two_bytes) {
  std::vector<NamedKernels> all;
  for (const Isa isa : supported_isas()) {
    if (isa != Isa::kScalar) all.push_back({std::string(isa_name(isa)), kernels_of(isa, two_bytes)});
#if defined(__x86_64__)
    if (isa == Isa::kAvx2 && emulates()) all.push_back({"emulated avx512", emulated_avx512_kernels(two_bytes)});
#endif
  }
  return all;
}

// With those that differ from others in products of one-byte activations alone.
std::vector<NamedKernels> product_kernels(bool two_bytes) {
  std::vector<NamedKernels> all = vector_kernels(two_bytes);
#if defined(__x86_64__)
  const std::vector<Isa> isas = supported_isas();
  if (!two_bytes && emulates() && std::ranges::find(isas, Isa::kAvx2) != isas.end()) {
    all.push_back({"emulated avx-vnni", emulated_avx_vnni_kernels(false)});
    all.push_back({"emulated amx", emulated_amx_kernels(false)});
  }
#endif
  return all;
}

std::vector<std::uint32_t> bits(std::span<const float> values) {
  std::vector<std::uint32_t> out;
  for (const float value : values) out.push_back(std::bit_cast<std::uint32_t>(value));
  return out;
}

// Normal-looking values over many magnitudes, with exact zeros and subnormal numbers among them.
std::vector<float> random_values(std::uint64_t seed, std::int64_t count, float scale = 1) {
  PhiloxStream random(seed, 1);
  std::vector<float> values;
  for (std::int64_t i = 0; i < count; ++i) {
    const auto value = static_cast<float>(random.uniform() + random.uniform() + random.uniform() - 1.5);
    const std::uint64_t kind = random.below(64);
    values.push_back(kind == 0 ? 0.0f : kind == 1 ? value * 1e-40f : kind == 2 ? value * 100 * scale : value * scale);
  }
  return values;
}

double exact_exponential_error_in_ulps(float x, float y) {
  const double exact = std::exp(static_cast<double>(x));
  const double ulp =
      std::nextafter(static_cast<float>(exact), std::numeric_limits<float>::infinity()) - static_cast<float>(exact);
  return std::abs(y - exact) / ulp;
}

// exp(x) seen through the softmax kernel: 16 equal logits at temperature 1 sum to 16 exp(x), which is exact.
float exponential_of(const KernelTable& kernels, float x) {
  const std::vector<float> logits(16, x);
  return kernels.chunk_sums(logits.data(), 16, 0.0f, 1.0f).sum / 16;
}

TEST(Kernels, TheExponentialStaysWithinOneUnitOfTheLastPlace) {
  const KernelTable kernels = scalar_kernels(false);
  double worst = 0;
  for (float x = 0; x > -87.0f; x -= 0.000731f)
    worst = std::max(worst, exact_exponential_error_in_ulps(x, exponential_of(kernels, x)));
  EXPECT_LT(worst, 1.0);
  EXPECT_EQ(exponential_of(kernels, 0.0f), 1.0f);
  EXPECT_EQ(exponential_of(kernels, -87.5f), 0.0f);
  EXPECT_EQ(exponential_of(kernels, -std::numeric_limits<float>::infinity()), 0.0f);
}

TEST(Kernels, ElementwiseFunctionsAgreeWithTheReference) {
  const FloatMode mode;
  const KernelTable reference = scalar_kernels(false);
  for (const auto& [name, kernels] : vector_kernels(false)) {
    SCOPED_TRACE(name);
    for (const std::int64_t n : {16, 64, 208, 576}) {
      const auto x = random_values(1, n);
      const auto y = random_values(2, n, 3);
      std::vector<float> a(x.size());
      std::vector<float> b(x.size());
      reference.rms_norm(x.data(), y.data(), n, 1e-5f, a.data());
      kernels.rms_norm(x.data(), y.data(), n, 1e-5f, b.data());
      EXPECT_EQ(bits(a), bits(b));
      reference.swiglu(y.data(), x.data(), n, a.data());
      kernels.swiglu(y.data(), x.data(), n, b.data());
      EXPECT_EQ(bits(a), bits(b));
      reference.add(a.data(), y.data(), n);
      kernels.add(b.data(), y.data(), n);
      EXPECT_EQ(bits(a), bits(b));
      EXPECT_EQ(reference.largest_bits(x.data(), n), kernels.largest_bits(x.data(), n));
      EXPECT_EQ(reference.maximum(x.data(), n), kernels.maximum(x.data(), n));
    }
    for (const std::int64_t half : {8, 16, 24, 32, 64}) {
      auto a = random_values(3, 2 * half);
      auto b = a;
      const auto cosines = random_values(4, half);
      const auto sines = random_values(5, half);
      reference.rope(a.data(), cosines.data(), sines.data(), half);
      kernels.rope(b.data(), cosines.data(), sines.data(), half);
      EXPECT_EQ(bits(a), bits(b));
    }
  }
}

TEST(Kernels, LargeNegativeAndPositiveGatesStayFinite) {
  for (const auto& [name, kernels] : vector_kernels(false)) {
    const std::vector<float> gate = {0,    1,    -1,    80,    -80,    88,     -88,   100,
                                     -100, 1000, -1000, 1e30f, -1e30f, 1e-40f, -0.0f, 20};
    const std::vector<float> up(16, 1.0f);
    std::vector<float> a(16);
    std::vector<float> b(16);
    scalar_kernels(false).swiglu(gate.data(), up.data(), 16, a.data());
    kernels.swiglu(gate.data(), up.data(), 16, b.data());
    EXPECT_EQ(bits(a), bits(b)) << name;
    for (const float value : a) EXPECT_TRUE(std::isfinite(value));
    EXPECT_EQ(a[9], 1000.0f);
    EXPECT_NEAR(a[12], 0.0f, 1e-8f);
  }
}

TEST(Kernels, SoftmaxChunksAgreeWithTheReference) {
  const FloatMode mode;
  const KernelTable reference = scalar_kernels(false);
  for (const auto& [name, kernels] : vector_kernels(false)) {
    SCOPED_TRACE(name);
    for (const std::int64_t n : {16, 48, 1024}) {
      for (const float temperature : {0.3f, 1.0f, 1e-38f, 1e30f}) {
        auto logits = random_values(static_cast<std::uint64_t>(n), n, 8);
        logits[3] = -std::numeric_limits<float>::infinity();
        const float maximum = reference.maximum(logits.data(), n);
        const ChunkSums a = reference.chunk_sums(logits.data(), n, maximum, temperature);
        const ChunkSums b = kernels.chunk_sums(logits.data(), n, maximum, temperature);
        EXPECT_EQ(std::bit_cast<std::uint32_t>(a.sum), std::bit_cast<std::uint32_t>(b.sum));
        EXPECT_EQ(a.weight, b.weight);
        std::vector<std::uint64_t> wa(static_cast<std::size_t>(n));
        std::vector<std::uint64_t> wb(static_cast<std::size_t>(n));
        reference.chunk_weights(logits.data(), n, maximum, temperature, wa.data());
        kernels.chunk_weights(logits.data(), n, maximum, temperature, wb.data());
        EXPECT_EQ(wa, wb);
        std::uint64_t sum = 0;
        for (const std::uint64_t weight : wa) sum += weight;
        EXPECT_EQ(sum, a.weight);
      }
    }
  }
}

ModelDescription one_layer(std::int32_t hidden, std::int32_t ffn) {
  ModelDescription d;
  d.architecture = "llama";
  d.layers = 1;
  d.hidden = hidden;
  d.heads = 3;
  d.kv_heads = 1;
  d.head_dim = 48;
  d.ffn = ffn;
  d.vocabulary = 101;
  d.context = 64;
  d.norm_epsilon = 1e-5f;
  d.rope_theta = 10000;
  d.tied_embeddings = false;
  return d;
}

TEST(Kernels, QuantisedRowsAndProductsAgreeWithTheReferenceForEveryShape) {
  const FloatMode mode;
  ThreadPool pool(1);
  for (const bool two_bytes : {false, true}) {
    const KernelTable reference = scalar_kernels(two_bytes);
    // 832 and 1,600 columns are more groups than some kernels take at a time, in uneven parts.
    for (const std::int32_t cols : {16, 64, 144, 576, 832, 1600}) {
      const RandomModel model = random_model(one_layer(cols, 80), 11).value();
      auto expected = PackedWeights::create(model.description, reference).value();
      ASSERT_TRUE(expected.load(source_of(model.state), pool).ok());
      for (const auto& [name, kernels] : product_kernels(two_bytes)) {
        SCOPED_TRACE(name + " cols " + std::to_string(cols));
        auto packed = PackedWeights::create(model.description, kernels).value();
        ASSERT_TRUE(packed.load(source_of(model.state), pool).ok());
        std::vector<float> a(static_cast<std::size_t>(cols));
        std::vector<float> b(a.size());
        expected.embed(100, a.data());
        packed.embed(100, b.data());
        EXPECT_EQ(bits(a), bits(b));
        const std::int64_t groups = groups_of(cols);
        std::vector<std::int64_t> counts(17);
        std::iota(counts.begin(), counts.end(), 1);
        if (cols == 832) counts = {1, 5, 7, 12, 31, 33, 255, 256, 257, 263};
        // Emulated ones are slow, and have no tile of more than 16 rows.
        if (name.starts_with("emulated")) counts = {17};
        if (name.starts_with("emulated") && cols <= 144) counts = {1, 3, 6, 15, 17, 33};
        for (const std::int64_t rows : counts) {
          const auto x = random_values(static_cast<std::uint64_t>(rows), rows * cols, 10);
          const auto run = [&](const KernelTable& table, const PackedMatrix& w, bool add) {
            std::vector<std::uint8_t> q(
                static_cast<std::size_t>(rows * groups * kActivationGroup * table.activation_bytes) + 64);
            std::vector<float> scales(static_cast<std::size_t>(rows * (groups + 3)));
            const QuantizedRows quantized{.q = q.data(),
                                          .stride = groups * kActivationGroup * table.activation_bytes,
                                          .scales = scales.data(),
                                          .scale_stride = groups + 3,
                                          .groups = groups};
            for (std::int64_t r = 0; r < rows; ++r)
              EXPECT_TRUE(table.quantize(x.data() + r * cols, cols, quantized, r));
            std::vector<float> out(static_cast<std::size_t>(rows * w.panels * kLanes), 0.5f);
            table.matmul(w, 0, w.panels, quantized, rows, out.data(), w.panels * kLanes, add);
            return out;
          };
          EXPECT_EQ(bits(run(reference, expected.head(), false)), bits(run(kernels, packed.head(), false)));
          EXPECT_EQ(bits(run(reference, expected.head(), true)), bits(run(kernels, packed.head(), true)));
          EXPECT_EQ(bits(run(reference, expected.block(0).gate_up, true)),
                    bits(run(kernels, packed.block(0).gate_up, true)));
        }
      }
    }
  }
}

TEST(Kernels, AProductEqualsTheSumOfTheRoundedFactors) {
  // One group, so that the exact integer dot product times both scales is the whole story.
  const FloatMode mode;
  ThreadPool pool(1);
  const RandomModel model = random_model(one_layer(64, 80), 13).value();
  const KernelTable kernels = scalar_kernels(false);
  auto packed = PackedWeights::create(model.description, kernels).value();
  ASSERT_TRUE(packed.load(source_of(model.state), pool).ok());
  const auto x = random_values(3, 64);
  std::vector<std::uint8_t> q(128);
  float scale = 0;
  const QuantizedRows quantized{q.data(), 128, &scale, 1, 1};
  ASSERT_TRUE(kernels.quantize(x.data(), 64, quantized, 0));
  std::vector<float> out(112);
  kernels.matmul(packed.head(), 0, 7, quantized, 1, out.data(), 112, false);
  const GridTensor& head = model.state.tensors[static_cast<std::size_t>(model.description.head)];
  const auto* integers = reinterpret_cast<const std::int16_t*>(q.data());
  for (std::size_t row = 0; row < 101; ++row) {
    std::int64_t dot = 0;
    for (std::size_t k = 0; k < 64; ++k) dot += integers[k] * head.q[row * 64 + k];
    EXPECT_EQ(out[row], std::fma(static_cast<float>(dot), scale * bf16_to_float(head.scales[row]), 0.0f)) << row;
  }
}

TEST(Kernels, ProductsOfTheLargestIntegersAreExact) {
  const FloatMode mode;
  ThreadPool pool(1);
  constexpr std::size_t kCols = 128;
  // All of one sign, in turns, in turns of two, and half and half: sums of neighbours reach their limits.
  const auto sign = [](std::size_t pattern, std::size_t k) {
    const bool negative[] = {false, true, k % 2 == 1, k % 4 >= 2, k >= kCols / 2};
    return negative[pattern % 5] ? -1 : 1;
  };
  RandomModel model = random_model(one_layer(kCols, 80), 13).value();
  GridTensor& head = model.state.tensors[static_cast<std::size_t>(model.description.head)];
  for (std::size_t i = 0; i < head.q.size(); ++i)
    head.q[i] = static_cast<std::int8_t>(127 * sign(i / kCols, i % kCols));
  std::vector<float> x(5 * kCols);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(sign(i / kCols, i % kCols));
  for (const bool two_bytes : {false, true}) {
    const auto product = [&](const KernelTable& kernels) {
      auto packed = PackedWeights::create(model.description, kernels).value();
      EXPECT_TRUE(packed.load(source_of(model.state), pool).ok());
      const std::int64_t stride = static_cast<std::int64_t>(kCols) * kernels.activation_bytes;
      std::vector<std::uint8_t> q(static_cast<std::size_t>(5 * stride));
      std::vector<float> scales(5 * 2);
      const QuantizedRows quantized{q.data(), stride, scales.data(), 2, 2};
      for (std::int64_t r = 0; r < 5; ++r)
        EXPECT_TRUE(kernels.quantize(&x[static_cast<std::size_t>(r) * kCols], kCols, quantized, r));
      const std::int64_t width = packed.head().panels * kLanes;
      std::vector<float> out(static_cast<std::size_t>(5 * width));
      kernels.matmul(packed.head(), 0, packed.head().panels, quantized, 5, out.data(), width, false);
      return bits(out);
    };
    const auto expected = product(scalar_kernels(two_bytes));
    for (const auto& [name, kernels] : product_kernels(two_bytes)) EXPECT_EQ(product(kernels), expected) << name;
  }
}

TEST(Kernels, QuantisingFindsNanAndInfinityAndKeepsTinyGroupsAtZero) {
  for (const bool two_bytes : {false, true}) {
    auto all = product_kernels(two_bytes);
    all.push_back({"scalar", scalar_kernels(two_bytes)});
    for (const auto& [name, kernels] : all) {
      SCOPED_TRACE(name);
      std::vector<std::uint8_t> q(512);
      std::vector<float> scales(3);
      const QuantizedRows out{q.data(), 192 * kernels.activation_bytes, scales.data(), 3, 3};
      std::vector<float> x(144, 0.25f);
      EXPECT_TRUE(kernels.quantize(x.data(), 144, out, 0));
      for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                              -std::numeric_limits<float>::infinity()}) {
        for (const std::size_t at : {0u, 77u, 143u}) {
          auto broken = x;
          broken[at] = bad;
          EXPECT_FALSE(kernels.quantize(broken.data(), 144, out, 0));
        }
      }
      std::fill(x.begin(), x.begin() + 64, 0x1p-101f);
      ASSERT_TRUE(kernels.quantize(x.data(), 144, out, 0));
      EXPECT_EQ(scales[0], 0.0f);
      EXPECT_NE(scales[1], 0.0f);
      const std::vector<float> largest(144, std::numeric_limits<float>::max());
      EXPECT_TRUE(kernels.quantize(largest.data(), 144, out, 0));
    }
  }
}

TEST(Kernels, HalfPrecisionRoundsAsTheHardwareDoes) {
  const FloatMode mode;
  const KernelTable reference = scalar_kernels(false);
  std::vector<float> x;
  // Around every half, subnormal ones included: its neighbours, the middle to the next one, and a little beside that.
  for (std::uint32_t half = 0; half < 0x7bff; half += 7) {
    const float low =
        half < 0x400 ? static_cast<float>(half) * 0x1p-24f : std::bit_cast<float>((half << 13) + (112u << 23));
    const float step = half < 0x800 ? 0x1p-24f : std::bit_cast<float>((half << 13 & 0x0f800000u) + (102u << 23));
    for (const float at :
         {low, low + step / 2, std::nextafter(low + step / 2, 0.0f), std::nextafter(low + step / 2, 1e9f)}) {
      x.push_back(at);
      x.push_back(-at);
    }
  }
  x.insert(x.end(), {65504.0f, 65519.996f, -65519.996f, 1e-30f, 1e-42f, -1e-42f});
  x.resize((x.size() + 15) / 16 * 16);
  const auto n = static_cast<std::int64_t>(x.size());
  std::vector<std::uint16_t> expected(x.size());
  reference.to_half(x.data(), n, expected.data());
  EXPECT_EQ(expected[0], 0);
  for (const auto& [name, kernels] : vector_kernels(false)) {
    std::vector<std::uint16_t> got(x.size());
    kernels.to_half(x.data(), n, got.data());
    EXPECT_EQ(got, expected) << name;
  }
}

TEST(Kernels, AttentionAgreesWithTheReferenceForEveryLengthAndNumberOfHeads) {
  const FloatMode mode;
  for (const int head_dim : {16, 48, 64}) {
    const std::int64_t stride = 2 * 16 * head_dim;
    const auto values = random_values(9, 5 * stride);
    for (int keys = 1; keys <= 70; keys += keys < 36 ? 1 : 17) {
      // What lies past the last key is never read into a result.
      std::vector<std::uint16_t> kv(static_cast<std::size_t>(5 * stride), 0x7e00);
      std::vector<std::uint16_t> halves(values.size());
      scalar_kernels(false).to_half(values.data(), 5 * stride, halves.data());
      const std::vector<std::int32_t> table = {3, 0, 4, 1, 2};
      for (int position = 0; position < keys; ++position) {
        const std::int64_t block = table[static_cast<std::size_t>(position / 16)] * stride;
        for (int d = 0; d < head_dim; ++d) {
          const auto key = static_cast<std::size_t>(block + d * 16 + position % 16);
          const auto value = static_cast<std::size_t>(block + 16 * head_dim + position % 16 * head_dim + d);
          kv[key] = halves[key];
          kv[value] = halves[value];
        }
      }
      for (const int queries : {1, 2, 3, 4, 5, 6, 7, 8, 33, kQueriesMax}) {
        const auto q = random_values(static_cast<std::uint64_t>(queries), queries * head_dim);
        std::vector<float> a(q.size());
        std::vector<float> b(q.size());
        AttentionRow row{.q = q.data(), .out = a.data(), .table = table.data(), .keys = keys};
        const Attention attention{.rows = &row,
                                  .row_count = 1,
                                  .queries = queries,
                                  .head_dim = head_dim,
                                  .scale = 0.125f,
                                  .kv = kv.data(),
                                  .block_stride = stride};
        scalar_kernels(false).attend(attention);
        for (const float value : a) ASSERT_TRUE(std::isfinite(value));
        row.out = b.data();
        for (const auto& [name, kernels] : vector_kernels(false)) {
          kernels.attend(attention);
          ASSERT_EQ(bits(a), bits(b)) << name << " head_dim " << head_dim << " keys " << keys << " queries " << queries;
        }
      }
    }
  }
}

TEST(Kernels, AttentionOfRandomRowsAndTablesIsTheReferences) {
  const FloatMode mode;
  constexpr std::int32_t kBlocks = 60, kLongest = 20;  // blocks, in all and of a row
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    PhiloxStream random(seed, 21);
    const int head_dim = std::array{16, 48, 64, 80}[random.below(4)];
    const int queries = 1 + static_cast<int>(random.below(9));
    const std::int64_t stride = 2 * 16 * head_dim;
    const auto values = random_values(seed, kBlocks * stride);
    std::vector<std::uint16_t> kv(values.size());
    scalar_kernels(false).to_half(values.data(), kBlocks * stride, kv.data());
    const int row_count = 1 + static_cast<int>(random.below(kAttentionRows));
    // Each row goes on from a part of the row before.
    std::vector<std::vector<std::int32_t>> tables;
    std::vector<std::int32_t> keys;
    for (int r = 0; r < row_count; ++r) {
      const std::size_t shared = r == 0 ? 0 : random.below(kLongest + 1);
      for (std::size_t b = 0; b < kLongest; ++b) {
        if (b == 0) tables.emplace_back();
        tables.back().push_back(b < shared ? tables[static_cast<std::size_t>(r) - 1][b]
                                           : static_cast<std::int32_t>(random.below(kBlocks)));
      }
      keys.push_back(1 + static_cast<std::int32_t>(random.below(16 * kLongest)));
    }
    const auto q = random_values(seed + 1, row_count * queries * head_dim);
    const auto attend = [&](const KernelTable& kernels) {
      std::vector<float> out(q.size());
      std::vector<AttentionRow> rows;
      for (std::size_t r = 0; r < tables.size(); ++r) {
        const std::size_t at = r * static_cast<std::size_t>(queries * head_dim);
        rows.push_back({.q = &q[at], .out = &out[at], .table = tables[r].data(), .keys = keys[r]});
      }
      kernels.attend({.rows = rows.data(),
                      .row_count = row_count,
                      .queries = queries,
                      .head_dim = head_dim,
                      .scale = 0.25f,
                      .kv = kv.data(),
                      .block_stride = stride});
      return bits(out);
    };
    const auto expected = attend(scalar_kernels(false));
    for (const auto& [name, kernels] : vector_kernels(false)) ASSERT_EQ(attend(kernels), expected) << name << seed;
  }
}

TEST(Kernels, AttentionOfRowsThatShareBlocksIsThatOfEachAlone) {
  const FloatMode mode;
  constexpr int kHeadDim = 32, kQueries = 5;
  constexpr std::int64_t kStride = 2 * 16 * kHeadDim;
  const auto values = random_values(11, 9 * kStride);
  std::vector<std::uint16_t> kv(values.size());
  scalar_kernels(false).to_half(values.data(), 9 * kStride, kv.data());
  // Four rows of one prompt, two sequences that leave it after two blocks, and two that have nothing in common.
  const std::vector<std::vector<std::int32_t>> tables = {{0, 1, 2}, {0, 1, 3}, {0, 1, 4}, {5, 6}, {7, 8, 2}};
  const std::pair<std::size_t, std::int32_t> rows[] = {{0, 5},  {0, 16}, {0, 17}, {0, 40},
                                                       {1, 33}, {2, 47}, {3, 32}, {4, 41}};
  const auto q = random_values(12, kAttentionRows * kQueries * kHeadDim);
  const auto attend = [&](const KernelTable& kernels, bool together) {
    std::vector<float> out(q.size());
    std::vector<AttentionRow> all;
    for (const auto& [table, keys] : rows) {
      const std::size_t at = all.size() * kQueries * kHeadDim;
      all.push_back({.q = &q[at], .out = &out[at], .table = tables[table].data(), .keys = keys});
    }
    const int step = together ? kAttentionRows : 1;
    for (int r = 0; r < kAttentionRows; r += step) {
      kernels.attend({.rows = &all[static_cast<std::size_t>(r)],
                      .row_count = step,
                      .queries = kQueries,
                      .head_dim = kHeadDim,
                      .scale = 0.25f,
                      .kv = kv.data(),
                      .block_stride = kStride});
    }
    return bits(out);
  };
  const auto expected = attend(scalar_kernels(false), false);
  for (const auto& [name, kernels] : vector_kernels(false)) {
    EXPECT_EQ(attend(kernels, true), expected) << name;
    EXPECT_EQ(attend(kernels, false), expected) << name;
  }
}

TEST(Kernels, AWholePassAgreesWithTheReference) {
  ThreadPool pool(2);
  const RandomModel model = random_model(one_layer(144, 208), 17).value();
  const auto logits = [&](const KernelTable& kernels) {
    auto weights = PackedWeights::create(model.description, kernels).value();
    EXPECT_TRUE(weights.load(source_of(model.state), pool).ok());
    auto kv = KvPool::create(4, 2 * kBlockTokens * 48).value();
    auto pass = ForwardPass::create(model.description, kernels, weights, kv, pool).value();
    std::vector<std::int32_t> table;
    for (int i = 0; i < 4; ++i) table.push_back(kv.take());
    std::vector<ForwardRow> rows;
    for (std::int32_t position = 0; position < 50; ++position) rows.push_back({position * 2, position, table.data()});
    EXPECT_TRUE(pass->run(rows).ok());
    const std::vector<std::int32_t> picked = {0, 20, 49};
    const float* out = pass->logits(picked).value();
    std::vector<float> all;
    for (int i = 0; i < 3; ++i)
      all.insert(all.end(), out + i * pass->logits_stride(), out + i * pass->logits_stride() + 101);
    return bits(all);
  };
  for (const bool two_bytes : {false, true}) {
    const auto expected = logits(scalar_kernels(two_bytes));
    for (const auto& [name, kernels] : vector_kernels(two_bytes)) EXPECT_EQ(logits(kernels), expected) << name;
  }
}

}  // namespace
}  // namespace flotilla
