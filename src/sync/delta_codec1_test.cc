#include "sync/delta_codec1.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include <zstd.h>

#include "base/hashing.h"
#include "sync/apply_delta_for_tests.h"
#include "sync/delta.h"
#include "sync/delta_codec1_for_tests.h"
#include "sync/test_model.h"

namespace flotilla {
namespace {

using ::testing::HasSubstr;

class DeltaCodec1Test : public ::testing::Test {
 protected:
  Result<GridState> apply_to(const GridState& base, ByteSpan bytes) {
    DeltaHistory history = no_history(description_);
    return apply_delta(description_, base, bytes, history);
  }
  Status apply(ByteSpan bytes) { return apply_to(before_, bytes).status(); }
  void expect_refused(const DeltaStreams& streams, const char* why) {
    const Status status = apply(write_codec1_frame(streams));
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

TEST_F(DeltaCodec1Test, MemoryIsBoundedByTheModel) {
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

TEST_F(DeltaCodec1Test, TheStreamsMustBeCanonical) {
  ASSERT_TRUE(apply(write_codec1_frame(no_change())).ok());
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

TEST_F(DeltaCodec1Test, ValuesMustStayOnTheGrid) {
  GridState edge = before_;
  edge.tensors[0].q[0] = 127;
  edge.tensors[1].vector_q[0] = -32767;
  DeltaStreams streams = no_change();
  streams[kCounts][0] = 1;
  streams[kGaps] = {0};
  streams[kSteps] = {1};  // +1
  EXPECT_THAT(apply_to(edge, write_codec1_frame(streams)).status().message(), HasSubstr("becomes 128"));
  streams = no_change();
  streams[kCounts][2] = 1;
  streams[kVectorGaps] = {0};
  streams[kVectorSteps] = {0};  // -1
  EXPECT_THAT(apply_to(edge, write_codec1_frame(streams)).status().message(), HasSubstr("becomes -32768"));
}

TEST_F(DeltaCodec1Test, ScalesMustBeNewAndInRange) {
  const auto group = [&](std::uint16_t scale, std::uint8_t integer) {
    DeltaStreams streams = no_change();
    streams[kCounts][1] = 1;
    streams[kGroupGaps] = {0};
    streams[kGroupScales] = {static_cast<std::uint8_t>(scale), static_cast<std::uint8_t>(scale >> 8)};
    streams[kGroupIntegers] = Bytes(64, integer);
    return streams;
  };
  EXPECT_TRUE(apply(write_codec1_frame(group(0x3f80, 5))).ok());
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
  EXPECT_TRUE(apply(write_codec1_frame(vector(1, 1))).ok());
  expect_refused(vector(before_.tensors[1].vector_scale, 1), "keeps its scale");
  expect_refused(vector(1, 0x80), "-32768");
  for (const float scale : {0.0f, -1.0f, INFINITY, NAN}) expect_refused(vector(scale, 1), "out of range");
}

TEST_F(DeltaCodec1Test, AChangeInsideAGroupThatComesWholeIsRefused) {
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

TEST_F(DeltaCodec1Test, LeavesNoHistory) {
  const GridState after = changed_state(description_, before_, {.integers = 0.01}, random_);
  DeltaHistory history = encode_delta(description_, before_, no_history(description_), after)->history;
  ASSERT_NE(history, no_history(description_));
  ASSERT_TRUE(apply_delta(description_, after, write_codec1_frame(no_change()), history).ok());
  EXPECT_EQ(history, no_history(description_));
}

}  // namespace
}  // namespace flotilla
