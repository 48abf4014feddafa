#include "sync/delta.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include <fmt/format.h>

#include "sync/apply_delta_for_tests.h"
#include "sync/delta_frame.h"
#include "sync/test_model.h"

namespace flotilla {
namespace {

using ::testing::HasSubstr;

class DeltaTest : public ::testing::Test {
 protected:
  // Both ways with the same history, which both sides bring to the same next one.
  void expect_round_trip(const GridState& before, const GridState& after, DeltaHistory history = {}) {
    if (history.empty()) history = no_history(description_);
    const auto delta = encode_delta(description_, before, history, after, 2);
    ASSERT_TRUE(delta.ok()) << delta.status().to_string();
    const auto applied = apply_delta(description_, before, delta->bytes, history, 3);
    ASSERT_TRUE(applied.ok()) << applied.status().to_string();
    EXPECT_EQ(*applied, after);
    EXPECT_EQ(history, delta->history);
    EXPECT_TRUE(check_history(description_, history).ok());
    std::int64_t changed = 0;
    for (std::size_t i = 0; i < before.tensors.size(); ++i) {
      const GridTensor& a = before.tensors[i];
      const GridTensor& b = after.tensors[i];
      for (std::size_t j = 0; j < a.q.size(); ++j) changed += a.q[j] != b.q[j];
      for (std::size_t j = 0; j < a.vector_q.size(); ++j) changed += a.vector_q[j] != b.vector_q[j];
    }
    EXPECT_EQ(delta->changed, changed);
  }
  EncodedDelta delta_to(const GridState& after) {
    return encode_delta(description_, before_, no_history(description_), after).value();
  }
  Bytes encode(const GridState& after) { return delta_to(after).bytes; }
  Result<GridState> apply_to(const GridState& base, ByteSpan bytes) {
    DeltaHistory history = no_history(description_);
    return apply_delta(description_, base, bytes, history);
  }
  Status apply(ByteSpan bytes) { return apply_to(before_, bytes).status(); }

  const ModelDescription description_ = test_description();
  PhiloxStream random_{3, 0};
  const GridState before_ = random_state(description_, random_);
};

TEST_F(DeltaTest, RestoresRandomChangesOfEveryRate) {
  for (const double rate : {0.0, 0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0}) {
    for (int round = 0; round < 20; ++round) {
      SCOPED_TRACE(fmt::format("rate {}, round {}", rate, round));
      expect_round_trip(before_, changed_state(description_, before_, {.integers = rate, .vectors = rate}, random_));
      expect_round_trip(
          before_, changed_state(description_, before_, {.integers = rate, .vectors = rate, .scales = rate}, random_));
    }
  }
}

TEST_F(DeltaTest, RestoresTheFirstAndTheLastPosition) {
  for (std::size_t i = 0; i < before_.tensors.size(); ++i) {
    for (const bool first : {true, false}) {
      GridState after = before_;
      GridTensor& tensor = after.tensors[i];
      if (!tensor.q.empty()) {
        std::int8_t& q = first ? tensor.q.front() : tensor.q.back();
        q = static_cast<std::int8_t>(q > 0 ? q - 1 : q + 1);
      } else {
        std::int16_t& q = first ? tensor.vector_q.front() : tensor.vector_q.back();
        q = static_cast<std::int16_t>(q > 0 ? q - 1 : q + 1);
      }
      expect_round_trip(before_, after);
    }
  }
}

TEST_F(DeltaTest, RestoresTheLongestSteps) {
  GridState low = before_;
  GridState high = before_;
  for (auto* state : {&low, &high}) {
    const int sign = state == &low ? -1 : 1;
    for (GridTensor& tensor : state->tensors) {
      for (auto& q : tensor.q) q = static_cast<std::int8_t>(sign * kMatrixLimit);
      for (auto& q : tensor.vector_q) q = static_cast<std::int16_t>(sign * kVectorLimit);
    }
  }
  expect_round_trip(low, high);
  expect_round_trip(high, low);
}

TEST_F(DeltaTest, RestoresAScaleThatChangesAlone) {
  GridState after = before_;
  after.tensors[0].scales[2] ^= 1;  // the short last group of the first row
  after.tensors[3].scales[0] ^= 1;
  after.tensors[1].vector_scale *= 2;
  expect_round_trip(before_, after);
  EXPECT_EQ(delta_to(after).rescaled_groups, 3);
}

TEST_F(DeltaTest, OneChangeCostsFewBytes) {
  GridState after = before_;
  after.tensors[0].q[77] = static_cast<std::int8_t>(after.tensors[0].q[77] > 0 ? -1 : 1);
  EXPECT_LT(encode(after).size(), 100u);
}

TEST_F(DeltaTest, EveryPrefixAndEveryByteTooMuchIsRefused) {
  const Bytes bytes =
      encode(changed_state(description_, before_, {.integers = 0.05, .vectors = 0.05, .scales = 0.05}, random_));
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_EQ(apply(ByteSpan(bytes).first(size)).code(), StatusCode::kDataLoss) << size;
  }
  for (const std::uint8_t extra : {0x00, 0x01, 0xff}) {
    Bytes longer = bytes;
    longer.push_back(extra);
    EXPECT_EQ(apply(longer).code(), StatusCode::kDataLoss);
  }
}

TEST_F(DeltaTest, EveryFlippedBitIsRefused) {
  const Bytes bytes =
      encode(changed_state(description_, before_, {.integers = 0.05, .vectors = 0.05, .scales = 0.05}, random_));
  for (std::size_t bit = 0; bit < bytes.size() * 8; ++bit) {
    Bytes flipped = bytes;
    flipped[bit / 8] ^= static_cast<std::uint8_t>(1u << bit % 8);
    const Status status = apply(flipped);
    // A bit of the codec number makes a newer one of it.
    EXPECT_TRUE(status.code() == StatusCode::kDataLoss ||
                (bit / 8 / 2 == 2 && status.code() == StatusCode::kFailedPrecondition))
        << "bit " << bit << ": " << status.to_string();
  }
}

TEST_F(DeltaTest, ANewerCodecTellsToUpgrade) {
  Bytes bytes = encode(before_);
  bytes[4] = kDeltaCodec + 1;
  const Status status = apply(bytes);
  EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(status.message(), HasSubstr("upgrade"));
}

TEST_F(DeltaTest, AFlippedBitBelowTheChecksumIsAnErrorOrAnotherStateOnTheGrid) {
  const GridState after =
      changed_state(description_, before_, {.integers = 0.02, .vectors = 0.02, .scales = 0.02}, random_);
  const auto frame = read_delta_frame(description_, encode(after)).value();
  int refused = 0, accepted = 0;
  for (std::size_t part = 0; part < frame.parts.size(); ++part) {
    for (std::size_t bit = 0; bit < frame.parts[part].size() * 8; ++bit) {
      std::vector<Bytes> parts;
      for (const ByteSpan bytes : frame.parts) parts.emplace_back(bytes.begin(), bytes.end());
      parts[part][bit / 8] ^= static_cast<std::uint8_t>(1u << bit % 8);
      const auto applied = apply_to(before_, write_delta_frame(parts));
      (applied.ok() ? accepted : refused) += 1;
      if (applied.ok()) {
        ASSERT_TRUE(check_grid(description_, *applied).ok());
      } else {
        EXPECT_EQ(applied.status().code(), StatusCode::kDataLoss);
      }
    }
  }
  EXPECT_GT(refused, 0);
  EXPECT_GT(accepted, 0);
}

TEST_F(DeltaTest, AByteTooMuchInAPartIsRefused) {
  const auto frame = read_delta_frame(description_, encode(before_)).value();
  std::vector<Bytes> parts;
  for (const ByteSpan bytes : frame.parts) parts.emplace_back(bytes.begin(), bytes.end());
  parts.back().resize(parts.back().size() + 20, 1);
  const Status status = apply(write_delta_frame(parts));
  EXPECT_EQ(status.code(), StatusCode::kDataLoss);
  EXPECT_THAT(status.message(), HasSubstr("too many in part"));
}

TEST_F(DeltaTest, AnotherNumberOfPartsIsRefused) {
  const auto frame = read_delta_frame(description_, encode(before_)).value();
  std::vector<Bytes> parts(frame.parts.size() + 1);
  EXPECT_EQ(apply(write_delta_frame(parts)).code(), StatusCode::kDataLoss);
  parts.clear();
  EXPECT_EQ(apply(write_delta_frame(parts)).code(), StatusCode::kDataLoss);
}

TEST_F(DeltaTest, ValuesMustStayOnTheGrid) {
  // Steps that are right for one base lead another one off the grid.
  GridState after = before_;
  after.tensors[0].q[0] = 127;
  GridState base = after;
  base.tensors[0].q[0] = 126;
  const Bytes up = encode_delta(description_, base, no_history(description_), after).value().bytes;
  EXPECT_THAT(apply_to(after, up).status().message(), HasSubstr("becomes 128"));
  base = after;
  after.tensors[1].vector_q[0] = -32767;
  base.tensors[1].vector_q[0] = -32766;
  const Bytes down = encode_delta(description_, base, no_history(description_), after).value().bytes;
  EXPECT_THAT(apply_to(after, down).status().message(), HasSubstr("becomes -32768"));
}

TEST_F(DeltaTest, ScalesMustBeNew) {
  GridState after = before_;
  after.tensors[0].scales[1] ^= 1;
  EXPECT_THAT(apply_to(after, encode(after)).status().message(), HasSubstr("keeps its scale"));
  after = before_;
  after.tensors[1].vector_scale *= 2;
  EXPECT_THAT(apply_to(after, encode(after)).status().message(), HasSubstr("keeps its scale"));
}

TEST_F(DeltaTest, HistoryMakesWhatChangesBackCheap) {
  ModelDescription description;
  TensorSpec spec;
  spec.name = "w";
  spec.rows = 500;
  spec.cols = 2048;
  description.tensors = {spec};
  GridState state = random_state(description, random_);
  for (std::int8_t& q : state.tensors[0].q) q = static_cast<std::int8_t>(q / 2);
  GridState moved = state;
  for (std::int8_t& q : moved.tensors[0].q) q = static_cast<std::int8_t>(q + (random_.uniform() < 0.005 ? 1 : 0));
  const auto first = encode_delta(description, state, no_history(description), moved).value();
  const auto back = encode_delta(description, moved, first.history, state).value();
  EXPECT_LT(back.bytes.size(), first.bytes.size() / 20);
  const auto forgetful = encode_delta(description, moved, no_history(description), state).value();
  EXPECT_GT(forgetful.bytes.size(), back.bytes.size() * 20);
}

TEST_F(DeltaTest, ChainsOfVersionsKeepBothSidesAlike) {
  GridState state = before_;
  DeltaHistory history = no_history(description_);
  for (int version = 0; version < 40; ++version) {
    SCOPED_TRACE(version);
    const double rate = version % 7 == 0 ? 0.3 : 0.01;
    const GridState next = changed_state(
        description_, state, {.integers = rate, .vectors = rate, .scales = version % 5 == 0 ? 0.02 : 0}, random_);
    expect_round_trip(state, next, history);
    history = encode_delta(description_, state, history, next).value().history;
    state = next;
  }
}

TEST_F(DeltaTest, BytesDependOnNoNumberOfThreads) {
  const GridState after = changed_state(description_, before_, {.integers = 0.1, .vectors = 0.1}, random_);
  const auto one = encode_delta(description_, before_, no_history(description_), after, 1).value();
  const auto three = encode_delta(description_, before_, no_history(description_), after, 3).value();
  EXPECT_EQ(one.bytes, three.bytes);
  EXPECT_EQ(one.history, three.history);
}

TEST_F(DeltaTest, AHistoryOfAnotherModelIsRefused) {
  const Bytes bytes = encode(before_);
  DeltaHistory history = no_history(description_);
  history.emplace_back();
  EXPECT_EQ(apply_delta(description_, before_, bytes, history).status().code(), StatusCode::kDataLoss);
  history = no_history(description_);
  for (std::uint32_t i = 0; i <= 17 * 150 / 32; ++i) history[0].push_back({.position = i, .age = 1, .up = 1});
  EXPECT_EQ(check_history(description_, history).code(), StatusCode::kDataLoss);
  history[0].pop_back();
  EXPECT_TRUE(check_history(description_, history).ok());
  history = no_history(description_);
  history[0] = {{.position = kRegionMax - 1, .age = 1, .up = 1}};
  EXPECT_EQ(apply_delta(description_, before_, bytes, history).status().code(), StatusCode::kDataLoss);
  history[0] = {{.position = 5, .age = 1, .up = 1}, {.position = 5, .age = 2, .up = 1}};
  EXPECT_EQ(apply_delta(description_, before_, bytes, history).status().code(), StatusCode::kDataLoss);
  history[0] = {{.position = 5, .age = 0, .up = 1}};
  EXPECT_EQ(apply_delta(description_, before_, bytes, history).status().code(), StatusCode::kDataLoss);
}

TEST(DeltaLayout, PartsCoverEveryTensorAndEndWithTheirBatch) {
  ModelDescription description;
  const auto add = [&](TensorKind kind, std::int64_t rows, std::int64_t cols) {
    TensorSpec spec;
    spec.kind = kind;
    spec.rows = rows;
    spec.cols = cols;
    description.tensors.push_back(spec);
  };
  add(TensorKind::kMatrix, 49152, 576);
  for (int i = 0; i < 10; ++i) {
    add(TensorKind::kVector, 1, 576);
    add(TensorKind::kMatrix, 1536, 576);
    add(TensorKind::kMatrix, 3, 5'000'000);
  }
  const DeltaLayout layout = delta_layout(description);
  std::vector<std::int64_t> covered(description.tensors.size());
  std::size_t next_part = 0, next_region = 0;
  for (const DeltaLayout::Batch& batch : layout.batches) {
    EXPECT_EQ(batch.part_begin, next_part);
    next_part = batch.part_end;
    for (std::size_t part = batch.part_begin; part < batch.part_end; ++part) {
      EXPECT_EQ(layout.parts[part].begin, next_region);
      next_region = layout.parts[part].end;
      for (std::size_t i = layout.parts[part].begin; i < layout.parts[part].end; ++i) {
        const DeltaRegion& region = layout.regions[i];
        const auto tensor = static_cast<std::size_t>(region.tensor);
        EXPECT_GE(tensor, batch.tensor_begin);
        EXPECT_LT(tensor, batch.tensor_end);
        EXPECT_EQ(region.row_begin, covered[tensor]);
        covered[tensor] = region.row_end;
      }
    }
  }
  EXPECT_EQ(next_part, layout.parts.size());
  EXPECT_EQ(next_region, layout.regions.size());
  for (std::size_t i = 0; i < covered.size(); ++i) EXPECT_EQ(covered[i], description.tensors[i].rows);
}

TEST_F(DeltaTest, StatesThatAreNotOnTheGridAreRefused) {
  GridState bad = before_;
  bad.tensors[0].q.pop_back();
  const DeltaHistory none = no_history(description_);
  EXPECT_FALSE(encode_delta(description_, before_, none, bad).ok());
  EXPECT_FALSE(encode_delta(description_, bad, none, before_).ok());
}

// 0.5 % of independent changes of +1 or -1: at most 3 % more than n * H(p) + one bit a change, all included.
TEST_F(DeltaTest, SizeIsNearTheMemorylessBound) {
  ModelDescription description;
  TensorSpec spec;
  spec.name = "w";
  spec.rows = 1000;
  spec.cols = 2048;
  description.tensors = {spec};
  const GridState before = random_state(description, random_);
  GridState after = before;
  constexpr double kRate = 0.005;
  for (std::int8_t& q : after.tensors[0].q) {
    if (random_.uniform() < kRate)
      q = static_cast<std::int8_t>(q == -127 || (q < 127 && random_.below(2)) ? q + 1 : q - 1);
  }
  const auto delta = encode_delta(description, before, no_history(description), after);
  ASSERT_TRUE(delta.ok());
  const double n = static_cast<double>(spec.size());
  const double entropy = -kRate * std::log2(kRate) - (1 - kRate) * std::log2(1 - kRate);
  const double bound = (n * entropy + n * kRate) / 8;
  EXPECT_LT(static_cast<double>(delta->bytes.size()), 1.03 * bound) << "bound " << bound;
}

}  // namespace
}  // namespace flotilla
