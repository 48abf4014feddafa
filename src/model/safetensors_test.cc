#include "model/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fmt/format.h>

namespace flotilla {
namespace {

using ::testing::HasSubstr;

Bytes file_of(std::string_view header, std::string_view data) {
  ByteWriter writer;
  writer.put(static_cast<std::uint64_t>(header.size()));
  writer.put_bytes(as_bytes(header));
  writer.put_bytes(as_bytes(data));
  return std::move(writer).take();
}

void expect_refused(const Bytes& bytes, std::string_view why) {
  const auto file = SafetensorsFile::parse(bytes);
  ASSERT_FALSE(file.ok()) << "accepted; expected: " << why;
  EXPECT_EQ(file.status().code(), StatusCode::kDataLoss);
  EXPECT_THAT(file.status().message(), HasSubstr(std::string(why)));
}

void expect_refused(std::string_view header, std::string_view data, std::string_view why) {
  expect_refused(file_of(header, data), why);
}

Bytes small_file() {
  static const std::vector<float> matrix = {1, -2, 3.5, 0, 5, 6};
  static const std::vector<std::int8_t> odd = {-127, 0, 127};
  static const std::vector<std::uint16_t> half = {0x3f80, 0x4000};
  const std::vector<TensorToWrite> tensors = {
      {"odd", DType::kI8, {3}, as_bytes(std::span<const std::int8_t>(odd))},
      {"half", DType::kBF16, {2, 1}, as_bytes(std::span<const std::uint16_t>(half))},
      {"matrix", DType::kF32, {2, 3}, as_bytes(std::span<const float>(matrix))},
      {"empty", DType::kF32, {0, 7}, {}},
      {"scalar", DType::kBool, {}, as_bytes("\1")},
  };
  return write_safetensors(tensors, {{"format", "test"}, {"ключ", "значение"}}).value();
}

TEST(Safetensors, WhatIsWrittenIsReadBack) {
  const Bytes bytes = small_file();
  const auto file = SafetensorsFile::parse(bytes);
  ASSERT_TRUE(file.ok()) << file.status().to_string();
  EXPECT_EQ(file->metadata(), (SafetensorsMetadata{{"format", "test"}, {"ключ", "значение"}}));
  ASSERT_EQ(file->tensors().size(), 5u);
  EXPECT_EQ(file->expect("matrix", DType::kF32, {2, 3})->copy<float>(), (std::vector<float>{1, -2, 3.5, 0, 5, 6}));
  EXPECT_EQ(file->expect("odd", DType::kI8, {3})->copy<std::int8_t>(), (std::vector<std::int8_t>{-127, 0, 127}));
  EXPECT_EQ(file->find("half")->copy<std::uint16_t>(), (std::vector<std::uint16_t>{0x3f80, 0x4000}));
  EXPECT_EQ(file->find("scalar")->elements(), 1);
  EXPECT_EQ(file->find("empty")->elements(), 0);
  EXPECT_EQ(file->find("nothing"), nullptr);
}

TEST(Safetensors, EveryTensorIsAlignedToItsElement) {
  const Bytes bytes = small_file();
  const auto file = SafetensorsFile::parse(bytes);
  ASSERT_TRUE(file.ok());
  for (const TensorView& tensor : file->tensors()) {
    EXPECT_EQ((tensor.bytes.data() - bytes.data()) % dtype_size(tensor.dtype), 0) << tensor.name;
  }
}

TEST(Safetensors, ExpectTellsWhatWasFound) {
  const Bytes bytes = small_file();
  const auto file = SafetensorsFile::parse(bytes);
  ASSERT_TRUE(file.ok());
  EXPECT_THAT(file->expect("nothing", DType::kF32, {1}).status().message(), HasSubstr("nothing is missing"));
  EXPECT_THAT(file->expect("matrix", DType::kF32, {3, 2}).status().message(),
              HasSubstr("matrix is F32 [2, 3], expected F32 [3, 2]"));
  EXPECT_THAT(file->expect("matrix", DType::kF16, {2, 3}).status().message(), HasSubstr("expected F16"));
}

TEST(Safetensors, AFileIsWrittenAsInMemoryAndStaysMapped) {
  const TemporaryFolder folder;
  const std::vector<std::int32_t> values = {1, 2, 3};
  const std::vector<TensorToWrite> tensors = {{"a", DType::kI32, {3}, as_bytes(std::span<const std::int32_t>(values))},
                                              {"b", DType::kU8, {5}, as_bytes("hello")}};
  const auto path = folder.path() / "x.safetensors";
  ASSERT_TRUE(write_safetensors_file(path, tensors, {{"k", "v"}}).ok());
  EXPECT_EQ(read_file(path).value(), write_safetensors(tensors, {{"k", "v"}}).value());
  std::optional<SafetensorsFile> copy;
  {
    auto file = SafetensorsFile::open(path);
    ASSERT_TRUE(file.ok()) << file.status().to_string();
    copy = *file;
  }
  std::filesystem::resize_file(path, 0);  // a mapping would be gone now
  EXPECT_EQ(as_text(copy->find("b")->bytes), "hello");
  EXPECT_EQ(SafetensorsFile::open(folder.path() / "none").status().code(), StatusCode::kNotFound);
}

TEST(Safetensors, AFileWithoutTensorsIsValid) {
  EXPECT_TRUE(SafetensorsFile::parse(write_safetensors({}).value()).ok());
  EXPECT_TRUE(SafetensorsFile::parse(file_of("{}      ", "")).ok());
}

TEST(Safetensors, EveryDTypeHasItsOwnNameAndSize) {
  for (const auto& [name, size] : std::map<std::string, int>{{"F64", 8},
                                                             {"F32", 4},
                                                             {"F16", 2},
                                                             {"BF16", 2},
                                                             {"I64", 8},
                                                             {"I32", 4},
                                                             {"I16", 2},
                                                             {"I8", 1},
                                                             {"U64", 8},
                                                             {"U32", 4},
                                                             {"U16", 2},
                                                             {"U8", 1},
                                                             {"BOOL", 1}}) {
    const auto dtype = dtype_from_name(name);
    ASSERT_TRUE(dtype.has_value()) << name;
    EXPECT_EQ(dtype_name(*dtype), name);
    EXPECT_EQ(dtype_size(*dtype), size);
  }
}

TEST(Safetensors, AHeaderThatDoesNotFitIsRefused) {
  expect_refused(Bytes{1, 2, 3}, "");
  ByteWriter huge;
  huge.put(std::uint64_t{UINT64_MAX});
  expect_refused(std::move(huge).take(), "at most");
  ByteWriter beyond;
  beyond.put(std::uint64_t{9});
  beyond.put_bytes(as_bytes("{}      "));
  expect_refused(std::move(beyond).take(), "");
  expect_refused("", "", "begins with {");
  expect_refused(" {}", "", "begins with {");
  expect_refused("[]", "", "begins with {");
}

TEST(Safetensors, AHeaderThatIsNotStrictJsonIsRefused) {
  expect_refused("{", "", "safetensors header");
  expect_refused("{}}", "", "safetensors header");
  expect_refused(R"({"a\ud800":1})", "", "safetensors header");
  expect_refused("{\"\xff\":1}", "", "safetensors header");
  expect_refused("{\"a\":" + std::string(1000, '['), "", "nested deeper");
  expect_refused(
      R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})",
      "x", "\"a\" occurs twice");
  expect_refused(R"({"a":{"dtype":"U8","dtype":"I8","shape":[1],"data_offsets":[0,1]}})", "x",
                 "\"dtype\" occurs twice");
}

TEST(Safetensors, AnEntryThatIsNotWellFormedIsRefused) {
  expect_refused(R"({"a":1})", "x", "tensor a: an entry has");
  expect_refused(R"({"a":{"dtype":"U8","shape":[1]}})", "x", "an entry has");
  expect_refused(R"({"a":{"dtype":"U8","shape":[1],"offsets":[0,1]}})", "x", "an entry has");
  expect_refused(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"more":0}})", "x", "an entry has");
  expect_refused(R"({"a":{"dtype":8,"shape":[1],"data_offsets":[0,1]}})", "x", "dtype is not a string");
  expect_refused(R"({"a":{"dtype":"u8","shape":[1],"data_offsets":[0,1]}})", "x", "unknown dtype u8");
  expect_refused(R"({"a":{"dtype":"U8","shape":1,"data_offsets":[0,1]}})", "x", "shape is not a list");
  for (const char* size : {"-1", "1.0", "1e0", "\"1\"", "null", "18446744073709551615", "99999999999999999999999"}) {
    expect_refused(fmt::format(R"({{"a":{{"dtype":"U8","shape":[{}],"data_offsets":[0,1]}}}})", size), "x",
                   "other than sizes");
  }
  expect_refused(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0]}})", "x", "not a pair");
  expect_refused(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":0}})", "x", "not a pair");
  expect_refused(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[1,0]}})", "x", "not a begin and an end");
  expect_refused(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1.0]}})", "x", "not a begin and an end");
  expect_refused(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[-1,0]}})", "x", "not a begin and an end");
}

TEST(Safetensors, ShapesThatOverflowOrDoNotFitTheirBytesAreRefused) {
  expect_refused(R"({"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}})", "", "overflows");
  expect_refused(R"({"a":{"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,0]}})", "", "overflows");
  expect_refused(R"({"a":{"dtype":"F64","shape":[2305843009213693952],"data_offsets":[0,0]}})", "", "overflows");
  expect_refused(R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,1]}})", "x", "takes 2 bytes, data_offsets give 1");
  expect_refused(R"({"a":{"dtype":"U16","shape":[],"data_offsets":[0,1]}})", "x", "takes 2 bytes");
}

TEST(Safetensors, DataWithHolesOverlapsOrRestIsRefused) {
  const auto two = [](int a, int b, int c, int d) {
    return fmt::format(
        R"({{"a":{{"dtype":"U8","shape":[{}],"data_offsets":[{},{}]}},"b":{{"dtype":"U8","shape":[{}],"data_offsets":[{},{}]}}}})",
        b - a, a, b, d - c, c, d);
  };
  EXPECT_TRUE(SafetensorsFile::parse(file_of(two(2, 4, 0, 2), "abcd")).ok());
  expect_refused(two(0, 2, 3, 4), "abcd", "tensor b begins at byte 3 of the data, expected 2");
  expect_refused(two(0, 2, 1, 4), "abcd", "begins at byte 1");
  expect_refused(two(1, 2, 2, 4), "abcd", "begins at byte 1");
  expect_refused(two(0, 2, 2, 5), "abcd", "ends at byte 5 of 4");
  expect_refused(two(0, 2, 2, 3), "abcd", "cover 3 of 4");
  expect_refused("{}", "x", "cover 0 of 1");
}

TEST(Safetensors, MetadataThatIsNotStringsIsRefused) {
  expect_refused(R"({"__metadata__":[]})", "", "not an object");
  expect_refused(R"({"__metadata__":{"a":1}})", "", "metadata a is not a string");
  expect_refused(R"({"__metadata__":{"a":"1","a":"1"}})", "", "occurs twice");
}

TEST(Safetensors, EveryPrefixIsRefused) {
  const Bytes bytes = small_file();
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_FALSE(SafetensorsFile::parse(ByteSpan(bytes).first(size)).ok()) << size;
  }
  Bytes longer = bytes;
  longer.push_back(0);
  EXPECT_FALSE(SafetensorsFile::parse(longer).ok());
}

TEST(Safetensors, ABitFlipIsRefusedOrLeavesAWellFormedFile) {
  const Bytes bytes = small_file();
  for (std::size_t bit = 0; bit < bytes.size() * 8; ++bit) {
    Bytes flipped = bytes;
    flipped[bit / 8] ^= static_cast<std::uint8_t>(1 << (bit % 8));
    const auto file = SafetensorsFile::parse(flipped);
    if (!file.ok()) continue;
    std::size_t covered = 0;
    for (const TensorView& tensor : file->tensors()) covered += tensor.bytes.size();
    EXPECT_EQ(covered, 24u + 4u + 3u + 1u);
  }
}

TEST(Safetensors, WritingWhatCannotBeReadIsRefused) {
  const auto code = [](std::vector<TensorToWrite> tensors, SafetensorsMetadata metadata = {}) {
    return write_safetensors(tensors, metadata).status().code();
  };
  const ByteSpan one = as_bytes("x");
  EXPECT_EQ(code({{"a", DType::kU8, {1}, one}, {"a", DType::kU8, {1}, one}}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code({{"__metadata__", DType::kU8, {1}, one}}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code({{"a", DType::kU16, {1}, one}}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code({{"a", DType::kU8, {-1}, one}}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code({{"\xff", DType::kU8, {1}, one}}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code({}, {{"a", "\xff"}}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code({}, {{"a", std::string(17 << 20, 'x')}}), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace flotilla
