#include "sync/signing.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>
#include <thread>
#include <vector>

#include "base/files.h"
#include "sync/signed_json.h"
#include "sync/test_model.h"

namespace flotilla {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

template <std::size_t N>
std::array<std::uint8_t, N> array_of(const char* hex) {
  const Bytes bytes = from_hex(hex).value();
  std::array<std::uint8_t, N> result;
  std::copy_n(bytes.begin(), N, result.begin());
  return result;
}

TEST(Signing, AcceptsTheVectorsOfRfc8032) {
  // Section 7.1, tests 1 and 2.
  const auto key1 = array_of<32>("d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a");
  const auto signature1 = array_of<64>(
      "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555fb8821590a33bacc61e39701cf9b46bd25bf5f0595bbe24"
      "655141"
      "438e7a100b");
  EXPECT_TRUE(verify_signature(key1, {}, signature1).ok());
  const auto key2 = array_of<32>("3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c");
  const auto signature2 = array_of<64>(
      "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aee"
      "b00d29"
      "1612bb0c00");
  const Bytes message = {0x72};
  EXPECT_TRUE(verify_signature(key2, message, signature2).ok());
  EXPECT_EQ(verify_signature(key1, message, signature2).code(), StatusCode::kPermissionDenied);
}

TEST(Signing, RefusesAChangedMessageSignatureOrKey) {
  const std::string message = "head 12";
  const Signature signature = test_key()->sign(as_bytes(message));
  EXPECT_TRUE(verify_signature(test_key()->public_key(), as_bytes(message), signature).ok());
  EXPECT_EQ(verify_signature(test_key()->public_key(), as_bytes("head 13"), signature).code(),
            StatusCode::kPermissionDenied);
  EXPECT_EQ(verify_signature(other_key()->public_key(), as_bytes(message), signature).code(),
            StatusCode::kPermissionDenied);
  for (std::size_t bit = 0; bit < 512; ++bit) {
    Signature flipped = signature;
    flipped[bit / 8] ^= static_cast<std::uint8_t>(1u << bit % 8);
    EXPECT_FALSE(verify_signature(test_key()->public_key(), as_bytes(message), flipped).ok());
  }
}

TEST(Signing, TheFingerprintIsTheHashOfTheRawKey) {
  EXPECT_EQ(fingerprint(PublicKey{}), "sha256:66687aadf862bd776c8fc18b8e9f8e20089714856ee233b3902a591d0d5f2925");
}

TEST(Signing, AKeyFileIsMadeOnceAndIsPrivate) {
  const TemporaryFolder folder;
  const fs::path path = folder.path() / "deep" / "folder" / "key.pem";
  const auto made = SigningKey::load_or_create(path);
  ASSERT_TRUE(made.ok()) << made.status().to_string();
  struct stat info {};
  ASSERT_EQ(::stat(path.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
  EXPECT_THAT(read_text_file(path).value(), HasSubstr("BEGIN PRIVATE KEY"));
  const auto loaded = SigningKey::load_or_create(path);
  ASSERT_TRUE(loaded.ok());
  EXPECT_EQ((*loaded)->public_key(), (*made)->public_key());
  EXPECT_EQ(std::distance(fs::directory_iterator(path.parent_path()), fs::directory_iterator()), 1);
}

TEST(Signing, ManyWhoMakeTheKeyAtOnceEndWithTheSame) {
  const TemporaryFolder folder;
  std::vector<PublicKey> keys(8);
  {
    std::vector<std::jthread> threads;
    for (PublicKey& key : keys) {
      threads.emplace_back([&] { key = SigningKey::load_or_create(folder.path() / "key.pem").value()->public_key(); });
    }
  }
  for (const PublicKey& key : keys) EXPECT_EQ(key, keys[0]);
}

TEST(Signing, AKeyFileThatOthersCanReadIsRefused) {
  const TemporaryFolder folder;
  const fs::path path = folder.path() / "key.pem";
  ASSERT_TRUE(SigningKey::load_or_create(path).ok());
  for (const auto mode : {0640, 0604, 0644, 0610}) {
    fs::permissions(path, fs::perms(mode));
    const auto key = SigningKey::load_or_create(path);
    EXPECT_EQ(key.status().code(), StatusCode::kPermissionDenied);
    EXPECT_THAT(key.status().message(), HasSubstr("chmod 600"));
  }
}

TEST(Signing, AFileThatIsNoEd25519KeyIsRefused) {
  const TemporaryFolder folder;
  const fs::path path = folder.path() / "key.pem";
  // A P-256 key, an encrypted one, text, nothing.
  for (const char* text :
       {"-----BEGIN PRIVATE KEY-----\nMIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgevZzL1gdAFr88hb2\n"
        "OF/2NxApJCzGCEDdfSp6VQO30hyhRANCAAQRWz+jn65BtOMvdyHKcvjBeBSDZH2r\n"
        "1RTwjmYSi9R/zpBnuQ4EiMnCqfMPWiZqB4QdbAd0E7oH50VpuZ1P087G\n-----END PRIVATE KEY-----\n",
        "-----BEGIN ENCRYPTED PRIVATE KEY-----\nMIGb\n-----END ENCRYPTED PRIVATE KEY-----\n", "key", ""}) {
    std::ofstream(path) << text;
    fs::permissions(path, fs::perms(0600));
    EXPECT_EQ(SigningKey::load_or_create(path).status().code(), StatusCode::kDataLoss) << text;
  }
}

TEST(SignedJson, IsTheBodyWithASignatureAtItsEnd) {
  const std::string text = sign_json("kind", {{"b", 1}, {"a", "x"}, {"format", 1}}, *test_key());
  EXPECT_TRUE(text.starts_with(R"({"a":"x","b":1,"format":1,"signature":")")) << text;
  const auto document = open_signed_json(text);
  ASSERT_TRUE(document.ok()) << document.status().to_string();
  EXPECT_EQ(document->text, R"({"a":"x","b":1,"format":1})");
  EXPECT_TRUE(check_signed_json("kind", *document, test_key()->public_key(), "format", 1).ok());
  EXPECT_EQ(check_signed_json("other", *document, test_key()->public_key(), "format", 1).code(),
            StatusCode::kPermissionDenied);
  EXPECT_EQ(check_signed_json("kind", *document, other_key()->public_key(), "format", 1).code(),
            StatusCode::kPermissionDenied);
}

TEST(SignedJson, RefusesWhatItDoesNotWrite) {
  const std::string good = sign_json("kind", {{"a", 1}, {"format", 1}}, *test_key());
  const std::string tail = good.substr(good.find(",\"signature\""));
  const auto code = [](const std::string& text) { return open_signed_json(text).status().code(); };
  EXPECT_EQ(code(good), StatusCode::kOk);
  for (std::size_t size = 0; size < good.size(); ++size)
    EXPECT_EQ(code(good.substr(0, size)), StatusCode::kDataLoss) << size;
  EXPECT_EQ(code(good + "\n"), StatusCode::kDataLoss);
  EXPECT_EQ(code(" " + good), StatusCode::kDataLoss);
  for (const char* body :
       {R"({"format":1,"a":1)", R"({"a": 1,"format":1)", R"({"a":1,"a":1,"format":1)", R"({"a":1.0e0,"format":1)",
        R"({"a":"\u0041","format":1)", R"([1)", R"({"a":)", R"()", "{\"a\":\"\xff\""}) {
    EXPECT_EQ(code(body + tail), StatusCode::kDataLoss) << body;
  }
  std::string base64 = good;
  base64[base64.size() - 10] = '-';
  EXPECT_EQ(code(base64), StatusCode::kDataLoss);
  std::string long_signature = good;
  long_signature.replace(long_signature.size() - 6, 4, "AAA=");
  EXPECT_EQ(code(long_signature), StatusCode::kDataLoss);
}

TEST(SignedJson, WhatNobodySignedIsNotParsed) {
  const auto open = [](std::string_view text) {
    return open_signed_json("kind", text, test_key()->public_key(), "format", 1).status().code();
  };
  const nlohmann::json large = {{"a", std::string(100'000, 'x')}, {"format", 1u}};
  const std::string good = sign_json("kind", large, *test_key());
  EXPECT_EQ(open(good), StatusCode::kOk);
  EXPECT_EQ(open_signed_json(good).status().code(), StatusCode::kDataLoss) << "too much to read of a stranger";
  EXPECT_EQ(open(sign_json("kind", large, *other_key())), StatusCode::kPermissionDenied);
  EXPECT_EQ(open(sign_json("other", large, *test_key())), StatusCode::kPermissionDenied);
  std::string no_json = good;
  no_json[0] = '[';
  EXPECT_EQ(open(no_json), StatusCode::kPermissionDenied) << "its signature is looked at first";
  EXPECT_EQ(open(good.substr(0, good.size() - 1)), StatusCode::kDataLoss);
  EXPECT_EQ(open(sign_json("kind", {{"format", 2u}}, *test_key())), StatusCode::kFailedPrecondition);
}

TEST(SignedJson, ANewerFormatTellsToUpgradeAndADamagedOneDoesNot) {
  const auto check = [](const std::string& text) {
    return check_signed_json("kind", open_signed_json(text).value(), test_key()->public_key(), "format", 1);
  };
  const std::string newer = sign_json("kind", {{"format", 2u}, {"new", {1, 2}}}, *test_key());
  EXPECT_EQ(check(newer).code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(check(newer).message(), HasSubstr("format is 2, this program knows 1: upgrade flotilla"));
  std::string damaged = sign_json("kind", {{"format", 1u}}, *test_key());
  damaged[damaged.find('1')] = '3';
  EXPECT_EQ(check(damaged).code(), StatusCode::kPermissionDenied);
}

}  // namespace
}  // namespace flotilla
