#include "hub/aws_chunked.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fmt/format.h>

namespace flotilla {
namespace {

const SigV4Scope kScope{std::chrono::sys_seconds(std::chrono::seconds(1'700'000'000)), "us-east-1"};

ChunkSignatures signatures() { return {"secret", kScope, std::string(64, 'a')}; }

struct Outcome {
  Status status;
  std::string text;
  bool ended = false;
  NamedValues trailers;
};

// Fed in pieces of `piece` bytes.
Outcome feed(std::string_view wire, bool is_signed, bool trailer, std::size_t piece) {
  AwsChunkedBody body(is_signed ? std::make_optional(signatures()) : std::nullopt, trailer);
  Outcome outcome;
  while (!wire.empty() && outcome.status.ok()) {
    outcome.status = body.feed(as_bytes(wire.substr(0, piece)), [&](ByteSpan bytes) {
      outcome.text += as_text(bytes);
      return ok_status();
    });
    wire.remove_prefix(std::min(piece, wire.size()));
  }
  outcome.ended = body.ended();
  outcome.trailers = body.trailers();
  return outcome;
}

std::string signed_wire(bool trailer, std::string_view first = "hello ", std::string_view second = "world") {
  ChunkSignatures signer = signatures();
  std::string wire;
  for (const std::string_view chunk : {first, second}) {
    wire += fmt::format("{:x};chunk-signature={}\r\n{}\r\n", chunk.size(), signer.sign(as_bytes(chunk)), chunk);
  }
  wire += fmt::format("0;chunk-signature={}\r\n", signer.sign({}));
  if (trailer) {
    wire += fmt::format("x-amz-checksum-crc32:AAAA\r\nx-amz-trailer-signature:{}\r\n",
                        signer.sign_trailer("x-amz-checksum-crc32:AAAA\n"));
  }
  return wire + "\r\n";
}

TEST(AwsChunked, BytesComeOutHoweverTheyComeIn) {
  const std::string plain = "6\r\nhello \r\n5\r\nworld\r\n0\r\nX-Amz-Checksum-CRC32: AAAA\r\n\r\n";
  for (const std::size_t piece : {1, 2, 3, 7, 1000}) {
    for (const auto& [wire, is_signed, trailer] :
         {std::tuple(plain, false, true), std::tuple(signed_wire(false), true, false),
          std::tuple(signed_wire(true), true, true),
          std::tuple(std::string("b\r\nhello world\r\n0\r\n\r\n"), false, true)}) {
      const Outcome outcome = feed(wire, is_signed, trailer, piece);
      EXPECT_TRUE(outcome.status.ok()) << outcome.status.to_string();
      EXPECT_EQ(outcome.text, "hello world");
      EXPECT_TRUE(outcome.ended);
    }
  }
  const auto trailers = feed(plain, false, true, 5).trailers;
  EXPECT_THAT(trailers, ::testing::ElementsAre(std::pair("x-amz-checksum-crc32", "AAAA")));
}

TEST(AwsChunked, ABodyThatIsCutHasNotEnded) {
  const std::string wire = signed_wire(true);
  for (std::size_t size = 0; size < wire.size(); ++size) {
    const Outcome outcome = feed(std::string_view(wire).substr(0, size), true, true, 11);
    EXPECT_TRUE(outcome.status.ok());
    EXPECT_FALSE(outcome.ended) << size;
  }
}

TEST(AwsChunked, WhatIsNotThisEncodingIsRefused) {
  for (const char* wire : {"x\r\n", "\r\n", "5\nhello", "-1\r\n", "5 \r\nhello\r\n", "5\r\nhello!\r\n", "0\r\n\r\nmore",
                           "0\r\nno colon\r\n", "0\r\n:v\r\n", "10000000000000000\r\n"}) {
    EXPECT_EQ(feed(wire, false, true, 100).status.code(), StatusCode::kInvalidArgument) << wire;
  }
  EXPECT_EQ(feed("0\r\na:b\r\n\r\n", false, false, 100).status.code(), StatusCode::kInvalidArgument)
      << "no trailers here";
  EXPECT_EQ(feed(std::string(2000, '1'), false, true, 100).status.code(), StatusCode::kInvalidArgument);
  std::string many = "0\r\n";
  for (int i = 0; i < 9; ++i) many += "a:b\r\n";
  EXPECT_EQ(feed(many, false, true, 100).status.code(), StatusCode::kInvalidArgument);
}

TEST(AwsChunked, ASignedBodyHasEachChunkSigned) {
  const auto code = [](std::string wire, bool trailer = false) { return feed(wire, true, trailer, 64).status.code(); };
  EXPECT_EQ(code("5\r\nhello\r\n0\r\n\r\n"), StatusCode::kInvalidArgument);
  EXPECT_EQ(code("5;chunk-signature=" + std::string(64, '0') + "\r\nhello\r\n"), StatusCode::kPermissionDenied);
  EXPECT_EQ(code(fmt::format("{:x};chunk-signature=0\r\n", (1 << 20) + 1)), StatusCode::kInvalidArgument);
  std::string changed = signed_wire(false);
  changed[changed.find("world")] = 'W';
  EXPECT_EQ(code(changed), StatusCode::kPermissionDenied);
  std::string trailer = signed_wire(true);
  trailer[trailer.find("AAAA")] = 'B';
  EXPECT_EQ(code(trailer, true), StatusCode::kPermissionDenied);
  EXPECT_EQ(code(signed_wire(false), true), StatusCode::kInvalidArgument) << "the trailer is not signed";
  std::string late = signed_wire(true);
  late.insert(late.size() - 2, "x-amz-checksum-crc32:BBBB\r\n");
  EXPECT_EQ(code(late, true), StatusCode::kInvalidArgument) << "behind the signature";
}

TEST(AwsChunked, AChunkWithAWrongSignatureIsNotPassedOn) {
  EXPECT_EQ(feed("5;chunk-signature=" + std::string(64, '0') + "\r\nhello\r\n", true, false, 3).text, "");
}

}  // namespace
}  // namespace flotilla
