#include "sync/delta.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include <fmt/format.h>
#include <zstd.h>

#include "sync/delta_frame.h"
#include "sync/test_model.h"

namespace flotilla {
namespace {

using ::testing::HasSubstr;

class DeltaTest : public ::testing::Test {
 protected:
  void expect_round_trip(const GridState& before, const GridState& after) {
    const auto delta = encode_delta(description_, before, after);
    ASSERT_TRUE(delta.ok()) << delta.status().to_string();
    const auto applied = apply_delta(description_, before, delta->bytes);
    ASSERT_TRUE(applied.ok()) << applied.status().to_string();
    EXPECT_EQ(*applied, after);
    std::int64_t changed = 0;
    for (std::size_t i = 0; i < before.tensors.size(); ++i) {
      const GridTensor& a = before.tensors[i];
      const GridTensor& b = after.tensors[i];
      for (std::size_t j = 0; j < a.q.size(); ++j) changed += a.q[j] != b.q[j];
      for (std::size_t j = 0; j < a.vector_q.size(); ++j) changed += a.vector_q[j] != b.vector_q[j];
    }
    EXPECT_EQ(delta->changed, changed);
  }
  Bytes encode(const GridState& after) { return encode_delta(description_, before_, after)->bytes; }
  Status apply(ByteSpan bytes) { return apply_delta(description_, before_, bytes).status(); }
  void expect_refused(const DeltaStreams& streams, const char* why) {
    const Status status = apply(write_delta_frame(streams));
    EXPECT_EQ(status.code(), StatusCode::kDataLoss) << why;
    EXPECT_THAT(status.message(), HasSubstr(why));
  }
  // The streams of a delta that changes nothing, to be spoiled.
  DeltaStreams no_change() const {
    DeltaStreams streams;
    streams[kCounts] = Bytes(2 * description_.tensors.size(), 0);
    return streams;
  }

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
  EXPECT_EQ(encode_delta(description_, before_, after)->rescaled_groups, 3);
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

TEST_F(DeltaTest, AFlippedBitBelowTheChecksumsIsAnErrorOrACanonicalDelta) {
  // The decoder behind frame and checksum: whatever it accepts it would have written.
  const GridState after =
      changed_state(description_, before_, {.integers = 0.02, .vectors = 0.02, .scales = 0.02}, random_);
  const auto frame = read_delta_frame(description_, encode(after));
  ASSERT_TRUE(frame.ok());
  DeltaStreams streams;
  for (int i = 0; i < kDeltaStreams; ++i) streams[i].assign(frame->streams[i].begin(), frame->streams[i].end());
  int accepted = 0;
  for (int stream = 0; stream < kDeltaStreams; ++stream) {
    for (std::size_t bit = 0; bit < streams[stream].size() * 8; ++bit) {
      DeltaStreams flipped = streams;
      flipped[stream][bit / 8] ^= static_cast<std::uint8_t>(1u << bit % 8);
      const Bytes bytes = write_delta_frame(flipped);
      const auto applied = apply_delta(description_, before_, bytes);
      if (!applied.ok()) {
        EXPECT_EQ(applied.status().code(), StatusCode::kDataLoss);
        continue;
      }
      ++accepted;
      ASSERT_TRUE(check_grid(description_, *applied).ok());
      EXPECT_NE(*applied, after);
      EXPECT_EQ(encode(*applied), bytes);
    }
  }
  EXPECT_GT(accepted, 0);
}

TEST_F(DeltaTest, ANewerCodecTellsToUpgrade) {
  Bytes bytes = encode(before_);
  bytes[4] = 2;
  const Status status = apply(bytes);
  EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(status.message(), HasSubstr("upgrade"));
}

TEST_F(DeltaTest, MemoryIsBoundedByTheModel) {
  // 16 MB of zeros behind a valid checksum.
  ByteWriter frame;
  frame.put_bytes(as_bytes("FDLT"));
  frame.put(std::uint16_t{1});
  frame.put(std::uint16_t{0});
  const Bytes zeros(16 << 20);
  frame.put(std::uint64_t{zeros.size()});
  Bytes compressed(ZSTD_compressBound(zeros.size()));
  compressed.resize(ZSTD_compress(compressed.data(), compressed.size(), zeros.data(), zeros.size(), 1));
  frame.put_bytes(compressed);
  Bytes bytes = std::move(frame).take();
  const std::uint64_t checksum = xxh3_64(bytes);
  for (int i = 0; i < 8; ++i) bytes.push_back(static_cast<std::uint8_t>(checksum >> 8 * i));
  const Status status = apply(bytes);
  EXPECT_EQ(status.code(), StatusCode::kDataLoss);
  EXPECT_THAT(status.message(), HasSubstr("before compression"));
}

TEST_F(DeltaTest, TheStreamsMustBeCanonical) {
  ASSERT_TRUE(apply(write_delta_frame(no_change())).ok());
  const auto spoiled = [&](auto spoil) {
    DeltaStreams streams = no_change();
    spoil(streams);
    return streams;
  };
  expect_refused(spoiled([](DeltaStreams& s) { s[kCounts].pop_back(); }), "need 1 bytes");
  expect_refused(spoiled([](DeltaStreams& s) { s[kCounts].push_back(0); }), "too many in stream 0");
  for (int stream = 1; stream < kDeltaStreams; ++stream) {
    expect_refused(spoiled([&](DeltaStreams& s) { s[stream] = {0, 0, 0, 0}; }), "too many in stream");
  }
  expect_refused(spoiled([](DeltaStreams& s) { s[kCounts][0] = 1; }), "need 1 bytes");
  expect_refused(spoiled([](DeltaStreams& s) {
                   s[kCounts][0] = 1, s[kGaps] = {0x80, 0x00}, s[kSteps] = {0};
                 }),
                 "longer");
  expect_refused(spoiled([](DeltaStreams& s) {
                   s[kCounts][0] = 1, s[kGaps] = {0xf6, 0x13}, s[kSteps] = {0};
                 }),
                 "past the end");  // 17 * 150 = 2550
  expect_refused(spoiled([](DeltaStreams& s) {
                   s[kCounts][0] = 1, s[kGaps] = {0}, s[kSteps] = {0xfc, 0x03};
                 }),
                 "step code");
  expect_refused(spoiled([](DeltaStreams& s) { s[kCounts][3] = 2; }), "2 scales");
  expect_refused(spoiled([](DeltaStreams& s) { s[kCounts][2] = 1, s[kCounts][3] = 1; }), "1 scales and 1 changes");
  expect_refused(spoiled([](DeltaStreams& s) { s[kCounts][1] = 1, s[kGroupGaps] = {51}; }), "past the end");
}

TEST_F(DeltaTest, ValuesMustStayOnTheGrid) {
  GridState edge = before_;
  edge.tensors[0].q[0] = 127;
  edge.tensors[1].vector_q[0] = -32767;
  DeltaStreams streams = no_change();
  streams[kCounts][0] = 1;
  streams[kGaps] = {0};
  streams[kSteps] = {1};  // +1
  EXPECT_THAT(apply_delta(description_, edge, write_delta_frame(streams)).status().message(), HasSubstr("becomes 128"));
  streams = no_change();
  streams[kCounts][2] = 1;
  streams[kVectorGaps] = {0};
  streams[kVectorSteps] = {0};  // -1
  EXPECT_THAT(apply_delta(description_, edge, write_delta_frame(streams)).status().message(),
              HasSubstr("becomes -32768"));
}

TEST_F(DeltaTest, ScalesMustBeNewAndInRange) {
  const auto group = [&](std::uint16_t scale, std::uint8_t integer) {
    DeltaStreams streams = no_change();
    streams[kCounts][1] = 1;
    streams[kGroupGaps] = {0};
    streams[kGroupScales] = {static_cast<std::uint8_t>(scale), static_cast<std::uint8_t>(scale >> 8)};
    streams[kGroupIntegers] = Bytes(64, integer);
    return streams;
  };
  EXPECT_TRUE(apply(write_delta_frame(group(0x3f80, 5))).ok());
  expect_refused(group(before_.tensors[0].scales[0], 5), "keeps its scale");
  expect_refused(group(0x3f80, 0x80), "-128");
  for (const int scale : {0x0000, 0x8000, 0xbf80, 0x7f80, 0xff80, 0x7fc0, 0x0001}) {
    expect_refused(group(static_cast<std::uint16_t>(scale), 5), "out of range");
  }
  const auto vector = [&](float scale, std::uint8_t high) {
    DeltaStreams streams = no_change();
    streams[kCounts][3] = 1;
    const ByteSpan bytes = as_bytes(std::span<const float>(&scale, 1));
    streams[kVectorScales].assign(bytes.begin(), bytes.end());
    streams[kVectorIntegers] = Bytes(300, 0);
    streams[kVectorIntegers][1] = high;
    return streams;
  };
  EXPECT_TRUE(apply(write_delta_frame(vector(1, 1))).ok());
  expect_refused(vector(before_.tensors[1].vector_scale, 1), "keeps its scale");
  expect_refused(vector(1, 0x80), "-32768");
  for (const float scale : {0.0f, -1.0f, INFINITY, NAN}) expect_refused(vector(scale, 1), "out of range");
}

TEST_F(DeltaTest, AChangeInsideAGroupThatComesWholeIsRefused) {
  DeltaStreams streams = no_change();
  streams[kCounts][0] = 1;
  streams[kCounts][1] = 1;
  streams[kGroupGaps] = {1};
  streams[kGroupScales] = {0x80, 0x3f};
  streams[kGroupIntegers] = Bytes(64, 5);
  streams[kSteps] = {0};
  for (const int position : {64, 100, 127}) {
    streams[kGaps] = {static_cast<std::uint8_t>(position)};
    expect_refused(streams, "comes whole");
  }
}

TEST_F(DeltaTest, StatesThatAreNotOnTheGridAreRefused) {
  GridState bad = before_;
  bad.tensors[0].q.pop_back();
  EXPECT_FALSE(encode_delta(description_, before_, bad).ok());
  EXPECT_FALSE(encode_delta(description_, bad, before_).ok());
  EXPECT_FALSE(apply_delta(description_, bad, encode(before_)).ok());
}

// 0.5 % of independent changes of +1 or -1: how far the plain codec is from n * H(p) + one bit a change.
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
  const auto delta = encode_delta(description, before, after);
  ASSERT_TRUE(delta.ok());
  const double n = static_cast<double>(spec.size());
  const double entropy = -kRate * std::log2(kRate) - (1 - kRate) * std::log2(1 - kRate);
  const double bound = (n * entropy + n * kRate) / 8;
  EXPECT_LT(static_cast<double>(delta->bytes.size()), 1.25 * bound) << "bound " << bound;
}

}  // namespace
}  // namespace flotilla
