#include "model/grid.h"

#include <cmath>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/philox.h"

namespace flotilla {
namespace {

using ::testing::HasSubstr;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

ModelDescription tensors_of(std::vector<TensorSpec> tensors) {
  ModelDescription description;
  description.tensors = std::move(tensors);
  return description;
}

TensorSpec matrix(std::string name, std::int64_t rows, std::int64_t cols) {
  return {std::move(name), "", TensorKind::kMatrix, rows, cols, 0};
}
TensorSpec vector(std::string name, std::int64_t size) {
  return {std::move(name), "", TensorKind::kVector, 1, size, 0};
}

// Two matrices, one of them with a short last group, and a vector.
ModelDescription mixed() { return tensors_of({matrix("a", 3, 128), matrix("b", 5, 70), vector("n", 33)}); }

float normal(PhiloxStream& random) {
  return static_cast<float>(std::sqrt(-2 * std::log(1 - random.uniform())) *
                            std::cos(6.283185307179586 * random.uniform()));
}

ModelWeights random_weights(const ModelDescription& description, std::uint64_t seed, float size = 0.05f) {
  ModelWeights weights{description, {}};
  PhiloxStream random(seed, 1);
  for (const TensorSpec& spec : description.tensors) {
    auto& values = weights.tensors.emplace_back(spec.size());
    for (float& value : values) value = normal(random) * size;
  }
  return weights;
}

std::vector<const float*> pointers(const ModelWeights& weights) {
  std::vector<const float*> result;
  for (const auto& values : weights.tensors) result.push_back(values.data());
  return result;
}

float scale_at(const TensorSpec& spec, const GridTensor& tensor, std::int64_t i) {
  if (spec.kind == TensorKind::kVector) return tensor.vector_scale;
  return bf16_to_float(tensor.scales[i / spec.cols * groups_of(spec.cols) + i % spec.cols / kScaleGroup]);
}

int integer_at(const TensorSpec& spec, const GridTensor& tensor, std::int64_t i) {
  return spec.kind == TensorKind::kVector ? tensor.vector_q[i] : tensor.q[i];
}

// The definition, by the C library instead of by adding a large number.
void expect_rounded(const ModelWeights& weights, const GridState& state) {
  for (std::size_t t = 0; t < weights.tensors.size(); ++t) {
    const TensorSpec& spec = weights.description.tensors[t];
    for (std::int64_t i = 0; i < spec.size(); ++i) {
      const float quotient = weights.tensors[t][i] / scale_at(spec, state.tensors[t], i);
      ASSERT_EQ(integer_at(spec, state.tensors[t], i), std::nearbyint(quotient)) << spec.name << " " << i;
    }
  }
}

TEST(Bf16, EveryPatternSurvivesAndFloatsRoundToTheNearest) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float value = bf16_to_float(static_cast<std::uint16_t>(bits));
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(bf16_to_float(float_to_bf16(value))));
    } else {
      ASSERT_EQ(float_to_bf16(value), bits);
    }
  }
  EXPECT_EQ(float_to_bf16(std::bit_cast<float>(0x3f808000u)), 0x3f80);  // tie, to even
  EXPECT_EQ(float_to_bf16(std::bit_cast<float>(0x3f818000u)), 0x3f82);  // tie, to even
  EXPECT_EQ(float_to_bf16(std::bit_cast<float>(0x3f808001u)), 0x3f81);
  EXPECT_EQ(float_to_bf16(std::numeric_limits<float>::max()), 0x7f80);  // rounds to infinity
  EXPECT_TRUE(std::isnan(bf16_to_float(float_to_bf16(std::bit_cast<float>(0x7f800001u)))));
}

TEST(Grid, IntegersAreTheRoundedQuotients) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    const ModelWeights weights = random_weights(mixed(), seed, std::ldexp(1.0f, static_cast<int>(seed * 9) - 95));
    const auto state = make_grid(weights);
    ASSERT_TRUE(state.ok()) << state.status().to_string();
    ASSERT_TRUE(check_grid(weights.description, *state).ok());
    expect_rounded(weights, *state);
  }
}

TEST(Grid, ExactHalvesGoToTheEvenInteger) {
  const ModelDescription description = tensors_of({matrix("a", 1, 64), vector("n", 4)});
  ModelWeights weights{description, {std::vector<float>(64, 0.0f), {1.0f, 2.5f, -1.5f, 0.5f}}};
  GridState before = make_grid(random_weights(description, 1)).value();
  before.tensors[0].scales[0] = 0x3f80;  // 1
  before.tensors[1].vector_scale = 1;
  weights.tensors[0] = std::vector<float>(64);
  for (int i = 0; i < 64; ++i) weights.tensors[0][i] = static_cast<float>(i - 32) + 0.5f;
  const auto state = regrid(description, before, pointers(weights), nullptr);
  ASSERT_TRUE(state.ok());
  for (int i = 0; i < 64; ++i) EXPECT_EQ(state->tensors[0].q[i] % 2, 0) << i;
  EXPECT_EQ(state->tensors[1].vector_q, (std::vector<std::int16_t>{1, 2, -2, 0}));
}

TEST(Grid, ANewScaleLeavesHeadroomAndWastesLittle) {
  const ModelWeights weights = random_weights(mixed(), 3);
  const GridState state = make_grid(weights).value();
  for (std::size_t t = 0; t < weights.tensors.size(); ++t) {
    const TensorSpec& spec = weights.description.tensors[t];
    const std::int64_t width = spec.kind == TensorKind::kVector ? spec.cols : kScaleGroup;
    for (std::int64_t row = 0; row < spec.rows; ++row) {
      for (std::int64_t col = 0; col < spec.cols; col += width) {
        double largest = 0;
        for (std::int64_t i = col; i < std::min(col + width, spec.cols); ++i) {
          largest = std::max(largest, std::fabs(double{weights.tensors[t][row * spec.cols + i]}));
        }
        const int limit = spec.kind == TensorKind::kVector ? kVectorLimit : kMatrixLimit;
        const double scale = scale_at(spec, state.tensors[t], row * spec.cols + col);
        EXPECT_GE(scale * limit, largest * kScaleHeadroom);
        EXPECT_LE(scale * limit, largest * kScaleHeadroom * (1 + 1.0 / 128));
      }
    }
  }
}

TEST(Grid, DequantizedWeightsAreWithinHalfAStepAndOnTheirOwnGrid) {
  const ModelWeights weights = random_weights(mixed(), 4);
  const GridState state = make_grid(weights).value();
  const ModelWeights values = dequantize(weights.description, state);
  for (std::size_t t = 0; t < weights.tensors.size(); ++t) {
    const TensorSpec& spec = weights.description.tensors[t];
    for (std::int64_t i = 0; i < spec.size(); ++i) {
      const float scale = scale_at(spec, state.tensors[t], i);
      EXPECT_EQ(values.tensors[t][i], static_cast<float>(integer_at(spec, state.tensors[t], i)) * scale);
      EXPECT_LE(std::fabs(values.tensors[t][i] - weights.tensors[t][i]), scale * 0.50001f);
    }
  }
  RegridReport report;
  EXPECT_EQ(regrid(weights.description, state, pointers(values), &report).value(), state);
  EXPECT_EQ(report.changed, 0);
  EXPECT_EQ(report.rescaled_groups, 0);
  EXPECT_EQ(report.total, 3 * 128 + 5 * 70 + 33);
}

TEST(Grid, SmallChangesKeepEveryScale) {
  ModelWeights weights = random_weights(mixed(), 5);
  const GridState before = make_grid(weights).value();
  PhiloxStream random(6, 1);
  for (auto& values : weights.tensors) {
    for (float& value : values) value += normal(random) * 2e-4f;
  }
  RegridReport report;
  const GridState after = regrid(weights.description, before, pointers(weights), &report).value();
  EXPECT_EQ(report.rescaled_groups, 0);
  expect_rounded(weights, after);
  std::int64_t changed = 0;
  for (std::size_t t = 0; t < after.tensors.size(); ++t) {
    EXPECT_EQ(after.tensors[t].scales, before.tensors[t].scales);
    for (std::size_t i = 0; i < after.tensors[t].q.size(); ++i)
      changed += after.tensors[t].q[i] != before.tensors[t].q[i];
    for (std::size_t i = 0; i < after.tensors[t].vector_q.size(); ++i) {
      changed += after.tensors[t].vector_q[i] != before.tensors[t].vector_q[i];
    }
  }
  EXPECT_EQ(report.changed, changed);
  EXPECT_GT(changed, 0);
  EXPECT_LT(changed, report.total);
}

TEST(Grid, OnlyTheGroupThatLeavesTheRangeGetsANewScale) {
  const ModelDescription description = mixed();
  ModelWeights weights = random_weights(description, 7);
  const GridState before = make_grid(weights).value();
  const std::int64_t outlier = 4 * 70 + 65;  // row 4, the short group of b
  weights.tensors[1][outlier] = 127.6f * scale_at(description.tensors[1], before.tensors[1], outlier);
  weights.tensors[2][5] = 10;
  RegridReport report;
  const GridState after = regrid(description, before, pointers(weights), &report).value();
  EXPECT_EQ(report.rescaled_groups, 2);
  EXPECT_EQ(report.rescaled_bytes, (2 + 6) + (4 + 2 * 33));
  EXPECT_EQ(regrid(description, before, pointers(weights), nullptr, 3).value(), after);
  EXPECT_EQ(after.tensors[0], before.tensors[0]);
  for (std::size_t g = 0; g < before.tensors[1].scales.size(); ++g) {
    EXPECT_EQ(after.tensors[1].scales[g] != before.tensors[1].scales[g], g == 9) << g;
  }
  EXPECT_GT(after.tensors[2].vector_scale, before.tensors[2].vector_scale);
  EXPECT_TRUE(check_grid(description, after).ok());
  expect_rounded(weights, after);
}

TEST(Grid, AValueAtTheEdgeStaysAndOnePastItDoesNot) {
  const ModelDescription description = tensors_of({matrix("a", 1, 1)});
  GridState before = make_grid(random_weights(description, 1)).value();
  before.tensors[0].scales[0] = 0x3f80;  // 1
  const auto rescaled = [&](float value) {
    RegridReport report;
    EXPECT_TRUE(regrid(description, before, {&value}, &report).ok());
    return report.rescaled_groups == 1;
  };
  for (const float sign : {1.0f, -1.0f}) {
    EXPECT_FALSE(rescaled(sign * 127.0f));
    EXPECT_FALSE(rescaled(sign * std::nextafter(127.5f, 0.0f)));
    EXPECT_TRUE(rescaled(sign * 127.5f));
    EXPECT_TRUE(rescaled(sign * 1e30f));
  }
}

TEST(Grid, ZerosHaveAScaleAndTinyValuesBecomeZero) {
  const ModelDescription description = tensors_of({matrix("a", 2, 64), vector("n", 3)});
  ModelWeights weights{description, {std::vector<float>(128, 0.0f), {0, -0.0f, 0}}};
  weights.tensors[0][64] = 1e-40f;
  const GridState state = make_grid(weights).value();
  EXPECT_EQ(bf16_to_float(state.tensors[0].scales[0]), kScaleOfZeros);
  EXPECT_EQ(bf16_to_float(state.tensors[0].scales[1]), kScaleMin);
  EXPECT_EQ(state.tensors[1].vector_scale, kScaleOfZeros);
  EXPECT_EQ(state.tensors[0].q, std::vector<std::int8_t>(128, 0));
  EXPECT_TRUE(check_grid(description, state).ok());
}

TEST(Grid, ValuesThatAreNotNumbersOrTooLargeAreRefusedByName) {
  const ModelDescription description = mixed();
  const ModelWeights good = random_weights(description, 8);
  const GridState before = make_grid(good).value();
  for (std::size_t t = 0; t < good.tensors.size(); ++t) {
    for (const auto& [value, why] : std::vector<std::pair<float, std::string>>{
             {kNaN, "NaN"}, {-kNaN, "NaN"}, {kInfinity, "infinite"}, {-kInfinity, "infinite"}, {3e38f, "too large"}}) {
      ModelWeights bad = good;
      bad.tensors[t].back() = value;
      for (const Status& status :
           {make_grid(bad).status(), regrid(description, before, pointers(bad), nullptr).status()}) {
        EXPECT_EQ(status.code(), StatusCode::kDataLoss);
        EXPECT_THAT(status.message(), HasSubstr("tensor " + description.tensors[t].name));
        EXPECT_THAT(status.message(), HasSubstr(why));
      }
    }
  }
}

TEST(Grid, WeightsOrStatesOfAnotherShapeAreRefused) {
  const ModelDescription description = mixed();
  const ModelWeights good = random_weights(description, 9);
  const GridState state = make_grid(good).value();
  ModelWeights bad = good;
  bad.tensors[1].pop_back();
  EXPECT_EQ(make_grid(bad).status().code(), StatusCode::kInvalidArgument);
  bad.tensors.pop_back();
  EXPECT_EQ(make_grid(bad).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(regrid(description, state, pointers(bad), nullptr).status().code(), StatusCode::kInvalidArgument);

  const auto refused = [&](const std::function<void(GridState&)>& change, std::string_view why) {
    GridState changed = state;
    change(changed);
    const Status status = check_grid(description, changed);
    EXPECT_EQ(status.code(), StatusCode::kDataLoss) << why;
    EXPECT_THAT(status.message(), HasSubstr(std::string(why)));
  };
  refused([](GridState& s) { s.tensors.pop_back(); }, "2 tensors, expected 3");
  refused([](GridState& s) { s.tensors[0].q.pop_back(); }, "tensor a: 383 integers of 8 bits, expected 384");
  refused([](GridState& s) { s.tensors[1].scales.push_back(0x3f80); }, "tensor b: 11 scales, expected 10");
  refused([](GridState& s) { s.tensors[0].vector_q.push_back(1); }, "tensor a: 1 integers of 16 bits, expected 0");
  refused([](GridState& s) { s.tensors[2].vector_q.clear(); }, "tensor n: 0 integers of 16 bits");
  refused([](GridState& s) { s.tensors[2].q.push_back(1); }, "tensor n: 1 integers of 8 bits, expected 0");
  refused([](GridState& s) { s.tensors[0].q[7] = -128; }, "tensor a: an integer is below -127");
  refused([](GridState& s) { s.tensors[2].vector_q[7] = -32768; }, "tensor n: an integer is below -32767");
  for (const std::uint16_t scale : {0x0000, 0x8000, 0xbf80, 0x0001, 0x7f80, 0x7fc0, 0x7200}) {
    refused([&](GridState& s) { s.tensors[1].scales[3] = scale; }, "tensor b: scale");
    refused([&](GridState& s) { s.tensors[2].vector_scale = bf16_to_float(scale); }, "tensor n: scale");
  }
  GridState short_state = state;
  short_state.tensors[0].scales.pop_back();
  EXPECT_EQ(regrid(description, short_state, pointers(good), nullptr).status().code(), StatusCode::kDataLoss);
}

// Written as docs/formats/grid.md says it, byte by byte.
TEST(GridDigest, FollowsTheDefinition) {
  const TensorSpec spec = matrix("ab", 1, 2);
  GridTensor tensor;
  tensor.q = {1, -1};
  tensor.scales = {0x3f80};
  const std::string bytes = std::string("\x16\0\0\0\0\0\0\0flotilla grid tensor 1", 30) +
                            std::string("\2\0\0\0\0\0\0\0ab", 10) + std::string(1, '\0') +
                            std::string("\1\0\0\0\0\0\0\0", 8) + std::string("\2\0\0\0\0\0\0\0", 8) +
                            "\x01\xff\x80\x3f";
  EXPECT_EQ(tensor_digest(spec, tensor), sha256(bytes));

  const TensorSpec norm = vector("n", 1);
  GridTensor values;
  values.vector_q = {-2};
  values.vector_scale = 1;
  const std::string norm_bytes = std::string("\x16\0\0\0\0\0\0\0flotilla grid tensor 1", 30) +
                                 std::string("\1\0\0\0\0\0\0\0n", 9) + "\x01" + std::string("\1\0\0\0\0\0\0\0", 8) +
                                 std::string("\1\0\0\0\0\0\0\0", 8) + std::string("\xfe\xff\0\0\x80\x3f", 6);
  EXPECT_EQ(tensor_digest(norm, values), sha256(norm_bytes));
}

TEST(GridDigest, TheRootIsTheTreeOfRfc6962) {
  const auto text = [](const Sha256Digest& digest) { return std::string(as_text(digest.bytes)); };
  const auto leaf = [&](const Sha256Digest& digest) { return sha256(std::string(1, '\0') + text(digest)); };
  const auto node = [&](const Sha256Digest& a, const Sha256Digest& b) { return sha256("\1" + text(a) + text(b)); };
  std::vector<Sha256Digest> d;
  for (const char* name : {"a", "b", "c", "d", "e"}) d.push_back(sha256(std::string_view(name)));
  EXPECT_EQ(merkle_root({}).to_hex(), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(merkle_root(std::span(d).first(1)), leaf(d[0]));
  EXPECT_EQ(merkle_root(std::span(d).first(2)), node(leaf(d[0]), leaf(d[1])));
  EXPECT_EQ(merkle_root(std::span(d).first(3)), node(node(leaf(d[0]), leaf(d[1])), leaf(d[2])));
  EXPECT_EQ(merkle_root(d), node(node(node(leaf(d[0]), leaf(d[1])), node(leaf(d[2]), leaf(d[3]))), leaf(d[4])));
}

TEST(GridDigest, AnyChangeChangesTheDigestOfTheState) {
  const ModelDescription description = mixed();
  const GridState state = make_grid(random_weights(description, 10)).value();
  const Sha256Digest digest = state_digest(description, state);
  EXPECT_EQ(state_digest(description, GridState(state)), digest);
  GridState changed = state;
  changed.tensors[0].q[0] ^= 1;
  EXPECT_NE(state_digest(description, changed), digest);
  changed = state;
  changed.tensors[1].scales.back() ^= 1;
  EXPECT_NE(state_digest(description, changed), digest);
  changed = state;
  changed.tensors[2].vector_scale *= 2;
  EXPECT_NE(state_digest(description, changed), digest);
  ModelDescription renamed = description;
  renamed.tensors[2].name = "m";
  EXPECT_NE(state_digest(renamed, state), digest);
}

}  // namespace
}  // namespace flotilla
