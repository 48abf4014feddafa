#include "model/gguf.h"

#include <cmath>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "model/half.h"
#include "model/test_models.h"

namespace flotilla {
namespace {

using ::testing::HasSubstr;

void expect_refused(const Bytes& bytes, std::string_view why, StatusCode code = StatusCode::kDataLoss) {
  const auto file = GgufFile::parse(bytes);
  ASSERT_FALSE(file.ok()) << "accepted; expected: " << why;
  EXPECT_EQ(file.status().code(), code);
  EXPECT_THAT(file.status().message(), HasSubstr(std::string(why)));
}
void expect_refused(const GgufBuilder& builder, std::string_view why, StatusCode code = StatusCode::kDataLoss) {
  expect_refused(builder.build(), why, code);
}

std::vector<float> values_of(const GgufTensor& tensor) {
  std::vector<float> values(tensor.rows * tensor.cols);
  dequantize(tensor, values.data());
  return values;
}

// One entry of each type and two tensors.
GgufBuilder small_file(std::uint32_t version = 3) {
  GgufBuilder builder(version);
  builder.number("u8", 0, std::uint8_t{200})
      .number("i8", 1, std::int8_t{-5})
      .number("u16", 2, std::uint16_t{60000})
      .number("i16", 3, std::int16_t{-300})
      .u32("u32", 4000000000u)
      .number("i32", 5, std::int32_t{-70000})
      .f32("f32", 0.5f)
      .number("bool", 7, std::uint8_t{1})
      .text("text", "größer")
      .number("u64", 10, UINT64_MAX)
      .number("i64", 11, INT64_MIN)
      .number("f64", 12, 0.1)
      .texts("texts", {"a", "", "c"})
      .array<std::int16_t>("i16s", 3, {-1, 2})
      .array<std::uint8_t>("bools", 7, {0, 1})
      .array<float>("f32s", 6, {1.5f, -2.0f});
  const std::vector<float> f32 = {1, 2, 3, 4, 5, 6};
  const std::vector<std::uint16_t> f16 = {0x3c00, 0xc000, 0x0001};
  return builder.tensor("a", {3, 2}, 0, as_bytes(std::span<const float>(f32)))
      .tensor("b", {3}, 1, as_bytes(std::span<const std::uint16_t>(f16)));
}

TEST(Half, IsExactForEveryPattern) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float value = half_to_float(static_cast<std::uint16_t>(bits));
    const int exponent = bits >> 10 & 31;
    const double fraction = (bits & 1023) / 1024.0;
    double expected = exponent == 0 ? std::ldexp(fraction, -14) : std::ldexp(1 + fraction, exponent - 15);
    if (exponent == 31) expected = fraction == 0 ? std::numeric_limits<double>::infinity() : NAN;
    if (bits & 0x8000) expected = -expected;
    ASSERT_EQ(std::signbit(value), std::signbit(expected)) << bits;
    if (std::isnan(expected)) {
      ASSERT_TRUE(std::isnan(value)) << bits;
    } else {
      ASSERT_EQ(value, expected) << bits;
    }
  }
}

TEST(Gguf, ReadsEveryTypeOfValueInBothVersions) {
  for (const std::uint32_t version : {2u, 3u}) {
    const Bytes bytes = small_file(version).build();
    const auto file = GgufFile::parse(bytes);
    ASSERT_TRUE(file.ok()) << file.status().to_string();
    const auto& metadata = file->metadata();
    EXPECT_EQ(metadata.at("u8"), GgufValue(std::uint64_t{200}));
    EXPECT_EQ(metadata.at("i8"), GgufValue(std::int64_t{-5}));
    EXPECT_EQ(metadata.at("u16"), GgufValue(std::uint64_t{60000}));
    EXPECT_EQ(metadata.at("i16"), GgufValue(std::int64_t{-300}));
    EXPECT_EQ(metadata.at("u32"), GgufValue(std::uint64_t{4000000000u}));
    EXPECT_EQ(metadata.at("i32"), GgufValue(std::int64_t{-70000}));
    EXPECT_EQ(metadata.at("f32"), GgufValue(0.5));
    EXPECT_EQ(metadata.at("bool"), GgufValue(true));
    EXPECT_EQ(metadata.at("text"), GgufValue(std::string_view("größer")));
    EXPECT_EQ(metadata.at("u64"), GgufValue(std::uint64_t{UINT64_MAX}));
    EXPECT_EQ(metadata.at("i64"), GgufValue(std::int64_t{INT64_MIN}));
    EXPECT_EQ(metadata.at("f64"), GgufValue(0.1));
    EXPECT_EQ(metadata.at("texts"), GgufValue(std::vector<std::string_view>{"a", "", "c"}));
    EXPECT_EQ(metadata.at("i16s"), GgufValue(std::vector<std::int64_t>{-1, 2}));
    EXPECT_EQ(metadata.at("bools"), GgufValue(std::vector<std::int64_t>{0, 1}));
    EXPECT_EQ(metadata.at("f32s"), GgufValue(std::vector<double>{1.5, -2.0}));
    ASSERT_EQ(file->tensors().size(), 2u);
    EXPECT_EQ(file->tensors()[0].rows, 2);
    EXPECT_EQ(file->tensors()[0].cols, 3);
    EXPECT_EQ(values_of(file->tensors()[0]), (std::vector<float>{1, 2, 3, 4, 5, 6}));
    EXPECT_EQ(values_of(file->tensors()[1]), (std::vector<float>{1, -2, 0x1p-24f}));
  }
}

// Worked out by hand from the formulas of ggml.
TEST(Gguf, DequantisesBlocks) {
  Bytes q4_1 = {0x00, 0x38, 0x00, 0xbc};  // scale 0.5, minimum -1
  Bytes q4_0 = {0x00, 0x38};
  Bytes q8_0 = {0x00, 0xb8};  // scale -0.5
  for (int i = 0; i < 16; ++i) {
    q4_1.push_back(static_cast<std::uint8_t>(i | (15 - i) << 4));
    q4_0.push_back(static_cast<std::uint8_t>(i | (15 - i) << 4));
  }
  for (int i = 0; i < 32; ++i) q8_0.push_back(static_cast<std::uint8_t>(i * 8));
  const std::uint16_t bf16 = 0xc049;
  const Bytes bytes = GgufBuilder()
                          .tensor("q4_1", {32}, 3, q4_1)
                          .tensor("q4_0", {32}, 2, q4_0)
                          .tensor("q8_0", {32}, 8, q8_0)
                          .tensor("bf16", {1}, 30, as_bytes(std::span<const std::uint16_t>(&bf16, 1)))
                          .build();
  const auto file = GgufFile::parse(bytes);
  ASSERT_TRUE(file.ok()) << file.status().to_string();
  for (int i = 0; i < 16; ++i) {
    EXPECT_EQ(values_of(file->tensors()[0])[i], 0.5f * i - 1);
    EXPECT_EQ(values_of(file->tensors()[0])[i + 16], 0.5f * (15 - i) - 1);
    EXPECT_EQ(values_of(file->tensors()[1])[i], 0.5f * (i - 8));
    EXPECT_EQ(values_of(file->tensors()[1])[i + 16], 0.5f * (7 - i));
    EXPECT_EQ(values_of(file->tensors()[2])[i], -4.0f * i);
    EXPECT_EQ(values_of(file->tensors()[2])[i + 16], -0.5f * (128 + 8 * i - 256));
  }
  EXPECT_EQ(values_of(file->tensors()[3])[0], -3.140625f);
}

TEST(Gguf, TensorsMayLieInAnyOrderAndWithAnotherAlignment) {
  const std::vector<float> one = {1};
  GgufBuilder builder;
  builder.align(8);
  const Bytes bytes =
      builder.tensor_at("second", {1}, 0, 8).tensor("first", {1}, 0, as_bytes(std::span<const float>(one))).build();
  Bytes two = bytes;
  two.insert(two.end(), {0, 0, 0, 0x40});  // 2, without padding after it
  const auto file = GgufFile::parse(two);
  ASSERT_TRUE(file.ok()) << file.status().to_string();
  EXPECT_EQ(values_of(file->tensors()[0]), std::vector<float>{2});
  EXPECT_EQ(values_of(file->tensors()[1]), std::vector<float>{1});
}

TEST(Gguf, AnOpenedFileStaysAsItWasRead) {
  const TemporaryFolder folder;
  ASSERT_TRUE(write_file_atomically(folder.path() / "x.gguf", small_file().build()).ok());
  std::optional<GgufFile> copy;
  {
    auto file = GgufFile::open(folder.path() / "x.gguf");
    ASSERT_TRUE(file.ok());
    copy = *file;
  }
  const auto values = values_of(copy->tensors()[0]);
  std::filesystem::resize_file(folder.path() / "x.gguf", 0);  // a mapping would be gone now
  EXPECT_EQ(copy->tensors()[0].name, "a");
  EXPECT_EQ(values_of(copy->tensors()[0]), values);
  EXPECT_EQ(GgufFile::open(folder.path() / "y.gguf").status().code(), StatusCode::kNotFound);
  ASSERT_TRUE(write_file_atomically(folder.path() / "z.gguf", "GG").ok());
  EXPECT_THAT(GgufFile::open(folder.path() / "z.gguf").status().message(), HasSubstr("z.gguf"));
}

TEST(Gguf, AnotherFormatOrVersionIsRefused) {
  expect_refused(to_bytes("GGML0000"), "does not begin with GGUF");
  expect_refused(GgufBuilder(1), "GGUF version 1, expected 2 or 3", StatusCode::kInvalidArgument);
  expect_refused(GgufBuilder(4), "GGUF version 4", StatusCode::kInvalidArgument);
  expect_refused(GgufBuilder(3u << 24), "big-endian", StatusCode::kInvalidArgument);
}

TEST(Gguf, CountsThatTheBytesCannotHoldAreRefused) {
  expect_refused(GgufBuilder().counts(0, UINT64_MAX), "metadata entries in 0 bytes");
  expect_refused(GgufBuilder().counts(UINT64_MAX, 0), "18446744073709551615 tensors in");
  expect_refused(small_file().counts(2, 15), "");
  for (const std::uint32_t type : {0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 12}) {
    ByteWriter writer;
    writer.put(type);
    writer.put(std::uint64_t{1} << 60);
    expect_refused(GgufBuilder().entry("k", 9, std::move(writer).take()), "k: an array of");
  }
}

TEST(Gguf, FaultyEntriesAreRefused) {
  expect_refused(GgufBuilder().u32("", 1), "a key of 0 bytes");
  expect_refused(GgufBuilder().u32(std::string(65536, 'k'), 1), "a key of 65536 bytes");
  expect_refused(GgufBuilder().u32("\xff", 1), "not UTF-8");
  expect_refused(GgufBuilder().text("k", "\xed\xa0\x80"), "k: a string is not UTF-8");
  expect_refused(GgufBuilder().texts("k", {"a", "\xff"}), "k: a string is not UTF-8");
  expect_refused(GgufBuilder().u32("k", 1).text("k", "x"), "k occurs twice");
  expect_refused(GgufBuilder().number("k", 13, std::uint8_t{0}), "k: unknown type 13");
  expect_refused(GgufBuilder().array<std::uint8_t>("k", 13, {0}), "k: unknown type 13 of an array");
  expect_refused(GgufBuilder().array<std::uint8_t>("k", 9, {0}), "array of arrays", StatusCode::kInvalidArgument);
  expect_refused(GgufBuilder().number("k", 7, std::uint8_t{2}), "a boolean of 2");
  for (const std::uint32_t alignment : {0u, 3u, 48u, 1u << 21}) {
    expect_refused(GgufBuilder().u32("general.alignment", alignment), "general.alignment");
  }
  expect_refused(GgufBuilder().text("general.alignment", "32"), "general.alignment");
}

TEST(Gguf, FaultyTensorsAreRefused) {
  const std::vector<float> zeros(64);
  const ByteSpan data = as_bytes(std::span<const float>(zeros));
  const auto tensor = [&](std::string_view name, const std::vector<std::uint64_t>& dimensions, std::uint32_t type) {
    return GgufBuilder().tensor(name, dimensions, type, data);
  };
  expect_refused(tensor("", {64}, 0), "a name of 0 bytes");
  expect_refused(tensor(std::string(65, 'n'), {64}, 0), "a name of 65 bytes");
  expect_refused(tensor("\xff", {64}, 0), "not UTF-8");
  expect_refused(tensor("a", {64}, 0).tensor("a", {64}, 0, data), "a occurs twice");
  expect_refused(tensor("a", {}, 0), "a: 0 dimensions");
  expect_refused(tensor("a", {1, 1, 1, 1, 64}, 0), "a: 5 dimensions");
  expect_refused(tensor("a", {64, 0}, 0), "a: a dimension of 0");
  expect_refused(tensor("a", {1ull << 32, 1ull << 32}, 0), "a: the shape overflows");
  expect_refused(tensor("a", {UINT64_MAX}, 0), "a: the shape overflows");
  expect_refused(tensor("a", {64}, 14), "a: element type 14 cannot be read; known: F32, F16, BF16, Q4_0, Q4_1, Q8_0",
                 StatusCode::kInvalidArgument);
  expect_refused(tensor("a", {48}, 3), "a: rows of 48 elements, expected a multiple of 32");
}

TEST(Gguf, TensorsThatDoNotCoverTheDataAreRefused) {
  const std::vector<float> zeros(8);
  const ByteSpan data = as_bytes(std::span<const float>(zeros));  // 32 bytes
  const auto two = [&](std::uint64_t first, std::uint64_t second) {
    GgufBuilder builder;
    builder.tensor("pad", {16}, 0, Bytes(128));
    return builder.tensor_at("a", {8}, 0, first).tensor_at("b", {8}, 0, second);
  };
  expect_refused(two(64, 64), "begins at byte 64 of the data, expected 96");
  expect_refused(two(32, 64), "begins at byte 32 of the data, expected 64");
  expect_refused(two(65, 97), "begins at byte 65");
  expect_refused(two(64, UINT64_MAX - 31), "");
  expect_refused(GgufBuilder().tensor_at("a", {8}, 0, 32), "begins at byte 32 of the data, expected 0");
  expect_refused(GgufBuilder().tensor("a", {9}, 0, data), "a takes 36 bytes from byte 0 of 32 bytes of data");
  expect_refused(GgufBuilder().tensor("a", {8}, 0, Bytes(33)), "bytes follow the last tensor");
  Bytes longer = GgufBuilder().tensor("a", {8}, 0, data).build();
  longer.push_back(0);
  expect_refused(longer, "1 bytes follow the last tensor");
}

TEST(Gguf, EveryPrefixIsRefusedButForThePaddingAtTheEnd) {
  const Bytes bytes = small_file().build();
  const std::size_t padding = 32 - 3 * sizeof(std::uint16_t);
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_EQ(GgufFile::parse(ByteSpan(bytes).first(size)).ok(), size >= bytes.size() - padding) << size;
  }
}

TEST(Gguf, ABitFlipIsRefusedOrLeavesTensorsWithinTheFile) {
  const Bytes bytes = small_file().build();
  for (std::size_t bit = 0; bit < bytes.size() * 8; ++bit) {
    Bytes flipped = bytes;
    flipped[bit / 8] ^= static_cast<std::uint8_t>(1 << (bit % 8));
    const auto file = GgufFile::parse(flipped);
    if (!file.ok()) continue;
    for (const GgufTensor& tensor : file->tensors()) EXPECT_EQ(values_of(tensor).size(), tensor.rows * tensor.cols);
  }
}

}  // namespace
}  // namespace flotilla
