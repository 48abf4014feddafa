#include "base/bytes.h"

#include <limits>

#include <gtest/gtest.h>

namespace flotilla {
namespace {

template <typename T>
std::string error_of(const Result<T>& result) {
  return result.ok() ? "" : result.status().to_string();
}

Bytes varint(std::uint64_t value) {
  ByteWriter writer;
  writer.put_varint(value);
  return std::move(writer).take();
}

TEST(Hex, reads_back_every_byte) {
  Bytes bytes(256);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::uint8_t>(i);
  const std::string text = hex(bytes);
  EXPECT_EQ(text.substr(0, 8), "00010203");
  EXPECT_EQ(text.substr(504), "fcfdfeff");
  EXPECT_EQ(from_hex(text).value(), bytes);
  EXPECT_TRUE(from_hex("").value().empty());
}

TEST(Hex, refuses_what_is_not_lower_case_hex) {
  EXPECT_EQ(error_of(from_hex("abc")), "data_loss: hex text has an odd length, 3");
  EXPECT_EQ(error_of(from_hex("0G")), "data_loss: hex text has a byte 0x47 at 1; expected 0-9 or a-f");
  EXPECT_EQ(error_of(from_hex("AB")), "data_loss: hex text has a byte 0x41 at 0; expected 0-9 or a-f");
  EXPECT_EQ(error_of(from_hex("\xff"
                              "0")),
            "data_loss: hex text has a byte 0xff at 0; expected 0-9 or a-f");
}

TEST(Base64, agrees_with_rfc_4648) {
  const std::pair<const char*, const char*> vectors[] = {{"", ""},
                                                         {"f", "Zg=="},
                                                         {"fo", "Zm8="},
                                                         {"foo", "Zm9v"},
                                                         {"foob", "Zm9vYg=="},
                                                         {"fooba", "Zm9vYmE="},
                                                         {"foobar", "Zm9vYmFy"}};
  for (const auto& [plain, encoded] : vectors) {
    EXPECT_EQ(base64(as_bytes(plain)), encoded);
    const auto decoded = from_base64(encoded);
    ASSERT_TRUE(decoded.ok()) << encoded;
    EXPECT_EQ(as_text(*decoded), plain);
  }
}

TEST(Base64, refuses_all_but_the_one_encoding) {
  EXPECT_EQ(error_of(from_base64("Zg=")), "data_loss: base64 text has 3 characters; expected a multiple of 4");
  EXPECT_FALSE(from_base64("Zg!=").ok());
  EXPECT_FALSE(from_base64("Zh==").ok());  // stray bits
  EXPECT_FALSE(from_base64("====").ok());
  EXPECT_FALSE(from_base64("Z===").ok());
  EXPECT_FALSE(from_base64("Zg==Zg==").ok());
  EXPECT_FALSE(from_base64("\nZm9v\n\n\n").ok());
  EXPECT_FALSE(from_base64("Zm9v    ").ok());
}

TEST(ByteWriter, what_it_writes_a_reader_reads) {
  ByteWriter writer;
  writer.put(std::uint8_t{7});
  writer.put(std::int32_t{-2});
  writer.put(1.5f);
  writer.put_varint(300);
  writer.put_bytes(as_bytes("abc"));
  EXPECT_EQ(writer.size(), 14u);
  const Bytes bytes = std::move(writer).take();
  EXPECT_EQ(hex(bytes), "07feffffff0000c03fac02616263");
  ByteReader reader(bytes);
  EXPECT_EQ(reader.get<std::uint8_t>().value(), 7);
  EXPECT_EQ(reader.get<std::int32_t>().value(), -2);
  EXPECT_EQ(reader.get<float>().value(), 1.5f);
  EXPECT_EQ(reader.get_varint().value(), 300u);
  EXPECT_EQ(as_text(reader.get_bytes(3).value()), "abc");
  EXPECT_EQ(reader.remaining(), 0u);
  EXPECT_EQ(reader.position(), 14u);
}

TEST(ByteReader, a_read_past_the_end_is_an_error_and_reads_nothing) {
  const Bytes bytes = {1, 2, 3};
  ByteReader reader(bytes);
  EXPECT_EQ(error_of(reader.get<std::uint32_t>()), "data_loss: need 4 bytes at offset 0, but only 3 are left");
  EXPECT_FALSE(reader.get_bytes(std::numeric_limits<std::uint64_t>::max()).ok());
  EXPECT_EQ(reader.position(), 0u);
  EXPECT_TRUE(reader.get_bytes(3).ok());
  EXPECT_TRUE(reader.get_bytes(0).ok());
  EXPECT_FALSE(reader.get<std::uint8_t>().ok());
}

TEST(Varint, reads_back_at_every_length) {
  for (int bits = 0; bits < 64; ++bits) {
    for (const std::uint64_t value : {std::uint64_t{1} << bits, (std::uint64_t{1} << bits) - 1}) {
      const Bytes bytes = varint(value);
      ByteReader reader(bytes);
      EXPECT_EQ(reader.get_varint().value(), value);
      EXPECT_EQ(reader.remaining(), 0u);
    }
  }
  EXPECT_EQ(varint(std::numeric_limits<std::uint64_t>::max()).size(), 10u);
}

TEST(Varint, refuses_cut_overlong_and_too_large_encodings) {
  const auto error = [](const Bytes& bytes) {
    ByteReader reader(bytes);
    return error_of(reader.get_varint());
  };
  EXPECT_EQ(error({}), "data_loss: need 1 bytes at offset 0, but only 0 are left");
  EXPECT_EQ(error({0x80}), "data_loss: need 1 bytes at offset 1, but only 0 are left");
  EXPECT_EQ(error({0x80, 0x00}), "data_loss: varint before byte 2 is longer than needed");
  EXPECT_EQ(error({0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x02}),
            "data_loss: varint before byte 10 does not fit 64 bits");
  EXPECT_EQ(error({0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x81, 0x00}),
            "data_loss: varint before byte 10 does not fit 64 bits");
}

}  // namespace
}  // namespace flotilla
