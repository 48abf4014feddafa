#include "base/hashing.h"

#include <gtest/gtest.h>

namespace flotilla {
namespace {

TEST(Sha256, agrees_with_fips_180) {
  EXPECT_EQ(sha256("").to_hex(), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(sha256("abc").to_hex(), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(sha256("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq").to_hex(),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(sha256(std::string(1000000, 'a')).to_hex(),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(Sha256, of_pieces_is_that_of_the_whole) {
  Sha256 hash;
  hash.update(as_bytes("a"));
  hash.update({});
  hash.update(as_bytes("bc"));
  EXPECT_EQ(hash.finish(), sha256("abc"));
}

TEST(Sha256, framing_tells_pieces_apart) {
  const auto framed = [](std::string_view a, std::string_view b) {
    Sha256 hash;
    hash.update_framed(a);
    hash.update_framed(b);
    return hash.finish();
  };
  EXPECT_NE(framed("ab", "c"), framed("a", "bc"));
  Sha256 by_hand;
  by_hand.update_value(std::uint64_t{2});
  by_hand.update(as_bytes("ab"));
  by_hand.update_value(std::uint64_t{1});
  by_hand.update(as_bytes("c"));
  EXPECT_EQ(framed("ab", "c"), by_hand.finish());
}

TEST(Sha256Digest, reads_back_and_refuses_other_text) {
  const Sha256Digest digest = sha256("abc");
  EXPECT_EQ(Sha256Digest::from_hex(digest.to_hex()).value(), digest);
  EXPECT_EQ(Sha256Digest::from_hex("ab").status().message(), "a SHA-256 has 64 hex digits, got 2");
  EXPECT_FALSE(Sha256Digest::from_hex(std::string(64, 'g')).ok());
}

// Pins the variant, the secret and the order of bytes.
TEST(Xxh3, gives_the_values_of_xxh3_64_bits) {
  EXPECT_EQ(xxh3_64({}), 0x2d06800538d394c2u);
  EXPECT_EQ(xxh3_64(as_bytes("abc")), 0x78af5f94892f3950u);
  EXPECT_NE(xxh3_64(as_bytes("abc"), 1), xxh3_64(as_bytes("abc")));
}

}  // namespace
}  // namespace flotilla
