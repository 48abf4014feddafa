#include "store/sigv4.h"

#include <gtest/gtest.h>

#include <functional>

#include "base/hashing.h"

namespace flotilla {
namespace {

// "Examples: Signature Calculations" of the Amazon S3 API reference.
const AwsCredentials kExampleKeys{"AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", ""};
const std::chrono::sys_seconds kExampleTime = parse_amz_time("20130524T000000Z").value();
const SigV4Scope kExampleScope{kExampleTime, "us-east-1"};

std::string empty_hash() { return sha256("").to_hex(); }

SigV4Request example(std::string method, std::string path, NamedValues query = {}, NamedValues headers = {}) {
  headers.emplace_back("Host", "examplebucket.s3.amazonaws.com");
  return {std::move(method), std::move(path), std::move(query), std::move(headers)};
}

std::string sign(SigV4Request request, std::string_view hash) {
  return sign_request(request, kExampleKeys, kExampleScope, hash);
}

StatusCode verify(const SigV4Request& request, std::chrono::sys_seconds now = kExampleTime,
                  std::string_view secret = kExampleKeys.secret_key) {
  const auto claim = read_claim(request);
  return claim.ok() ? verify_request(request, *claim, secret, now).code() : claim.status().code();
}

SigV4Request signed_example() {
  SigV4Request request = example("GET", "/a/b c", {{"prefix", "x"}}, {{"Range", "bytes=0-9"}});
  sign_request(request, {"AKID", kExampleKeys.secret_key, "token"}, kExampleScope, empty_hash());
  return request;
}

std::string& header(SigV4Request& request, std::string_view name) {
  for (auto& [key, value] : request.headers) {
    if (key == name) return value;
  }
  ADD_FAILURE() << "no header " << name;
  return request.headers.front().second;
}

void replace(std::string& text, std::string_view from, std::string_view to) {
  const std::size_t at = text.find(from);
  ASSERT_NE(at, text.npos) << from;
  text.replace(at, from.size(), to);
}

TEST(SigV4Test, GivesThePublishedSignaturesOfS3) {
  EXPECT_EQ(sign(example("GET", "/test.txt", {}, {{"Range", "bytes=0-9"}}), empty_hash()),
            "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41");
  EXPECT_EQ(sign(example("PUT", "/test$file.text", {},
                         {{"Date", "Fri, 24 May 2013 00:00:00 GMT"}, {"x-amz-storage-class", "REDUCED_REDUNDANCY"}}),
                 sha256("Welcome to Amazon S3.").to_hex()),
            "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd");
  EXPECT_EQ(sign(example("GET", "/", {{"lifecycle", ""}}), empty_hash()),
            "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543");
  EXPECT_EQ(sign(example("GET", "/", {{"prefix", "J"}, {"max-keys", "2"}}), empty_hash()),
            "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7");
}

TEST(SigV4Test, GivesThePublishedPresignedUrl) {
  SigV4Request request = example("GET", "/test.txt");
  presign_request(request, kExampleKeys, kExampleScope, std::chrono::seconds(86400));
  EXPECT_EQ(request_target(request),
            "/test.txt?X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=AKIAIOSFODNN7EXAMPLE%2F20130524%2Fus-east-1%2F"
            "s3%2Faws4_request&X-Amz-Date=20130524T000000Z&X-Amz-Expires=86400&X-Amz-Signature="
            "aeeed9bbccd4d02ee5c0109b86d86835f995330da4c265957d157751f604d404&X-Amz-SignedHeaders=host");
}

// "Signature Calculations for the Authorization Header: Transferring Payload in Multiple Chunks".
TEST(SigV4Test, GivesThePublishedSignaturesOfChunks) {
  SigV4Request request = example("PUT", "/examplebucket/chunkObject.txt", {},
                                 {{"content-encoding", "aws-chunked"},
                                  {"content-length", "66824"},
                                  {"x-amz-decoded-content-length", "66560"},
                                  {"x-amz-storage-class", "REDUCED_REDUNDANCY"}});
  header(request, "Host") = "s3.amazonaws.com";
  const std::string seed = sign(request, kSignedChunks);
  EXPECT_EQ(seed, "4f232c4386841ef735655705268965c44a0e4690baa4adea153f7db9fa80a0a9");
  ChunkSignatures chunks(kExampleKeys.secret_key, kExampleScope, seed);
  EXPECT_EQ(chunks.sign(Bytes(65536, 'a')), "ad80c730a21e5b8d04586a2213dd63b9a0e99e0e2307b0ade35a65485a288648");
  EXPECT_EQ(chunks.sign(Bytes(1024, 'a')), "0055627c9e194cb4542bae2aa5492e3c1575bbb81b612b7d234b86a503ef5497");
  EXPECT_EQ(chunks.sign({}), "b6c6ea8a5354eaf15b3cb7646744f4275b71ea724fed81ceb9323e279d449df9");
}

// "... in Multiple Chunks with trailing headers".
TEST(SigV4Test, GivesThePublishedSignaturesOfChunksWithATrailer) {
  SigV4Request request = example("PUT", "/examplebucket/chunkObject.txt", {},
                                 {{"content-encoding", "aws-chunked"},
                                  {"x-amz-decoded-content-length", "66560"},
                                  {"x-amz-storage-class", "REDUCED_REDUNDANCY"},
                                  {"x-amz-trailer", "x-amz-checksum-crc32c"}});
  header(request, "Host") = "s3.amazonaws.com";
  const std::string seed = sign(request, kSignedChunksWithTrailer);
  EXPECT_EQ(seed, "106e2a8a18243abcf37539882f36619c00e2dfc72633413f02d3b74544bfeb8e");
  ChunkSignatures chunks(kExampleKeys.secret_key, kExampleScope, seed);
  EXPECT_EQ(chunks.sign(Bytes(65536, 'a')), "b474d8862b1487a5145d686f57f013e54db672cee1c953b3010fb58501ef5aa2");
  EXPECT_EQ(chunks.sign(Bytes(1024, 'a')), "1c1344b170168f8e65b41376b44b20fe354e373826ccbbe2c1d40a8cae51e5c7");
  EXPECT_EQ(chunks.sign({}), "2ca2aba2005185cf7159c6277faf83795951dd77a3a99e6e65d5c9f85863f992");
  EXPECT_EQ(chunks.sign_trailer("x-amz-checksum-crc32c:sOO8/Q==\n"),
            "d81f82fc3505edab99d459891051a732e8730629a2e4a59689829ca17fe2e435");
}

// The AWS Signature Version 4 test suite: get-vanilla, get-vanilla-query-order-key-case, get-header-value-trim,
// get-header-value-order.
TEST(SigV4Test, GivesThePublishedSignaturesOfTheTestSuite) {
  const SigV4Scope scope{parse_amz_time("20150830T123600Z").value(), "us-east-1", "service"};
  const auto signature = [&](NamedValues query, NamedValues headers, const std::vector<std::string>& names) {
    headers.emplace_back("Host", "example.amazonaws.com");
    headers.emplace_back("X-Amz-Date", "20150830T123600Z");
    return sigv4_signature("wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY", scope,
                           string_to_sign(scope, canonical_request({"GET", "/", std::move(query), std::move(headers)},
                                                                   names, empty_hash())));
  };
  EXPECT_EQ(signature({}, {}, {"host", "x-amz-date"}),
            "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31");
  EXPECT_EQ(signature({{"Param2", "value2"}, {"Param1", "value1"}}, {}, {"host", "x-amz-date"}),
            "b97d918cfa904a5beff61c982a1b6f458b799221646efd99d3219ec94cdf2500");
  EXPECT_EQ(signature({}, {{"My-Header1", " value1"}, {"My-Header2", " \"a   b   c\""}},
                      {"host", "my-header1", "my-header2", "x-amz-date"}),
            "acc3ed3afb60bb290fc8d2dd0098b9911fcaa05412b367055dee359757a9c736");
  EXPECT_EQ(
      signature(
          {}, {{"My-Header1", "value4"}, {"My-Header1", "value1"}, {"My-Header1", "value3"}, {"My-Header1", "value2"}},
          {"host", "my-header1", "x-amz-date"}),
      "08c7e5a9acfcfeb3ab6b2185e75ce8b1deb5e634ec47601a50643f830c755c01");
}

TEST(SigV4Test, VerifiesWhatItSigned) {
  EXPECT_EQ(verify(signed_example()), StatusCode::kOk);
  EXPECT_EQ(read_claim(signed_example())->access_key, "AKID");
  EXPECT_EQ(read_claim(signed_example())->session_token, "token");
  EXPECT_EQ(read_claim(signed_example())->payload_hash, empty_hash());
  SigV4Request url = example("GET", "/a/b c");
  presign_request(url, kExampleKeys, kExampleScope, std::chrono::seconds(60));
  EXPECT_EQ(verify(url), StatusCode::kOk);
  EXPECT_EQ(read_claim(url)->payload_hash, kUnsignedPayload);
}

TEST(SigV4Test, RefusesARequestThatWasChangedAfterwards) {
  const std::vector<std::function<void(SigV4Request&)>> changes = {
      [](SigV4Request& request) { request.method = "PUT"; },
      [](SigV4Request& request) { request.path = "/a/b d"; },
      [](SigV4Request& request) { request.query[0].second = "longer"; },
      [](SigV4Request& request) { request.query.emplace_back("max-keys", "1"); },
      [](SigV4Request& request) { header(request, "Range") = "bytes=0-10"; },
      [](SigV4Request& request) { header(request, "Host") = "other"; },
      [](SigV4Request& request) { header(request, "x-amz-content-sha256") = sha256("other").to_hex(); },
      [](SigV4Request& request) { header(request, "x-amz-security-token") = "other"; },
      [](SigV4Request& request) { header(request, "x-amz-date") = "20130524T000001Z"; },
      [](SigV4Request& request) { replace(header(request, "authorization"), "us-east-1", "us-east-2"); },
  };
  for (std::size_t i = 0; i < changes.size(); ++i) {
    SigV4Request request = signed_example();
    changes[i](request);
    EXPECT_EQ(verify(request), StatusCode::kPermissionDenied) << "change " << i;
  }
  EXPECT_EQ(verify(signed_example(), kExampleTime, "another secret"), StatusCode::kPermissionDenied);
}

TEST(SigV4Test, RefusesARequestOfAnotherTime) {
  using std::chrono::seconds;
  EXPECT_EQ(verify(signed_example(), kExampleTime + seconds(900)), StatusCode::kOk);
  EXPECT_EQ(verify(signed_example(), kExampleTime - seconds(900)), StatusCode::kOk);
  EXPECT_EQ(verify(signed_example(), kExampleTime + seconds(901)), StatusCode::kFailedPrecondition);
  EXPECT_EQ(verify(signed_example(), kExampleTime - seconds(901)), StatusCode::kFailedPrecondition);
  SigV4Request url = example("GET", "/a");
  presign_request(url, kExampleKeys, kExampleScope, seconds(5000));
  EXPECT_EQ(verify(url, kExampleTime + seconds(5000)), StatusCode::kOk);
  EXPECT_EQ(verify(url, kExampleTime + seconds(5001)), StatusCode::kPermissionDenied);
  EXPECT_EQ(verify(url, kExampleTime - seconds(901)), StatusCode::kFailedPrecondition);
}

TEST(SigV4Test, RefusesAClaimThatIsNotWhole) {
  const auto code = [](const std::function<void(SigV4Request&)>& change) {
    SigV4Request request = signed_example();
    change(request);
    return read_claim(request).status().code();
  };
  const auto with = [&](std::string_view from, std::string_view to) {
    return code([&](SigV4Request& request) { replace(header(request, "authorization"), from, to); });
  };
  EXPECT_EQ(code([](SigV4Request& request) { request.headers.pop_back(); }), StatusCode::kPermissionDenied);
  EXPECT_EQ(with("AWS4-HMAC-SHA256 ", "AWS4-HMAC-SHA1 "), StatusCode::kPermissionDenied);
  EXPECT_EQ(with("Credential=", "Credentials="), StatusCode::kInvalidArgument);
  EXPECT_EQ(with("Signature=", "Signature"), StatusCode::kInvalidArgument);
  EXPECT_EQ(with("Signature=", "Signature=0"), StatusCode::kInvalidArgument);
  EXPECT_EQ(with("/s3/", "/ec2/"), StatusCode::kInvalidArgument);
  EXPECT_EQ(with("/aws4_request", ""), StatusCode::kInvalidArgument);
  EXPECT_EQ(with("20130524/", "20130525/"), StatusCode::kInvalidArgument);
  EXPECT_EQ(with("AKID/", "/"), StatusCode::kInvalidArgument);
  EXPECT_EQ(with("host;", ""), StatusCode::kInvalidArgument);
  EXPECT_EQ(with("host;range", "range;host"), StatusCode::kInvalidArgument);
  EXPECT_EQ(with("host;", "gone;host;"), StatusCode::kInvalidArgument);
  EXPECT_EQ(with(";x-amz-security-token", ""), StatusCode::kInvalidArgument);
  EXPECT_EQ(with("Signature=", "Signature=1, Signature="), StatusCode::kInvalidArgument);
  EXPECT_EQ(code([](SigV4Request& request) { request.headers.emplace_back("X-Amz-Acl", "public-read"); }),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(code([](SigV4Request& request) { request.headers.emplace_back("X-Amz-Date", "20130524T000000Z"); }),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(code([](SigV4Request& request) { header(request, "x-amz-date") = "20130524"; }),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(code([](SigV4Request& request) { header(request, "x-amz-content-sha256") = "none"; }),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(code([](SigV4Request& request) { request.query.emplace_back("X-Amz-Algorithm", "AWS4-HMAC-SHA256"); }),
            StatusCode::kInvalidArgument);
}

TEST(SigV4Test, RefusesAPresignedUrlThatIsNotWhole) {
  const auto code = [](std::string_view name, std::optional<std::string> value) {
    SigV4Request url = example("GET", "/a");
    presign_request(url, kExampleKeys, kExampleScope, std::chrono::seconds(60));
    std::erase_if(url.query, [&](const auto& parameter) { return parameter.first == name; });
    if (value) url.query.emplace_back(name, *value);
    return read_claim(url).status().code();
  };
  EXPECT_EQ(code("X-Amz-Algorithm", std::nullopt), StatusCode::kPermissionDenied);
  for (const char* name :
       {"X-Amz-Credential", "X-Amz-Date", "X-Amz-Expires", "X-Amz-SignedHeaders", "X-Amz-Signature"}) {
    EXPECT_EQ(code(name, std::nullopt), StatusCode::kInvalidArgument) << name;
  }
  for (const char* expires : {"", "0", "-1", "604801", "60s", "99999999999999999999"}) {
    EXPECT_EQ(code("X-Amz-Expires", expires), StatusCode::kInvalidArgument) << expires;
  }
  EXPECT_EQ(code("X-Amz-Algorithm", "AWS4-HMAC-SHA1"), StatusCode::kInvalidArgument);
  EXPECT_EQ(code("X-Amz-SignedHeaders", ""), StatusCode::kInvalidArgument);
}

TEST(SigV4Test, RefusesChunksThatAreChangedOrInAnotherOrder) {
  const auto chunks = [] { return ChunkSignatures(kExampleKeys.secret_key, kExampleScope, empty_hash()); };
  ChunkSignatures signer = chunks();
  const std::string first = signer.sign(as_bytes("one"));
  const std::string second = signer.sign(as_bytes("two"));
  const std::string trailer = signer.sign_trailer("a:b\n");
  ChunkSignatures whole = chunks();
  EXPECT_TRUE(whole.verify(as_bytes("one"), first).ok());
  EXPECT_TRUE(whole.verify(as_bytes("two"), second).ok());
  EXPECT_TRUE(whole.verify_trailer("a:b\n", trailer).ok());
  EXPECT_EQ(chunks().verify(as_bytes("One"), first).code(), StatusCode::kPermissionDenied);
  EXPECT_EQ(chunks().verify(as_bytes("two"), second).code(), StatusCode::kPermissionDenied);
  EXPECT_EQ(chunks().verify_trailer("a:b\n", trailer).code(), StatusCode::kPermissionDenied);
}

TEST(SigV4Test, ReadsTheTargetThatItWrites) {
  const SigV4Request written{"GET", "/b/a b+c%/\xc3\xa9~", {{"prefix", "x/y &="}, {"acl", ""}, {"+", "*"}}, {}};
  EXPECT_EQ(request_target(written), "/b/a%20b%2Bc%25/%C3%A9~?%2B=%2A&acl=&prefix=x%2Fy%20%26%3D");
  SigV4Request read;
  ASSERT_TRUE(read_request_target(request_target(written), read).ok());
  EXPECT_EQ(read.path, written.path);
  EXPECT_EQ(request_target(read), request_target(written));
  ASSERT_TRUE(read_request_target("/a?b&c=%2f&&d=+", read).ok());
  EXPECT_EQ(read.query, (NamedValues{{"b", ""}, {"c", "/"}, {"d", "+"}}));
  for (const char* target : {"", "a", "/%", "/%2", "/%zz", "/%00", "/?a=%", "/?%=a"}) {
    EXPECT_EQ(read_request_target(target, read).code(), StatusCode::kInvalidArgument) << target;
  }
}

TEST(SigV4Test, ReadsTheTimeThatItWrites) {
  for (const char* text : {"20130524T000000Z", "20240229T235959Z", "19700101T000000Z"}) {
    EXPECT_EQ(amz_time(parse_amz_time(text).value()), text);
  }
  for (const char* text :
       {"", "20130524T000000", "20130524 000000Z", "20230229T000000Z", "20131301T000000Z", "20130524T240000Z",
        "20130524T006000Z", "20130524T000060Z", "2013052aT000000Z", "20130524T000000Z "}) {
    EXPECT_EQ(parse_amz_time(text).status().code(), StatusCode::kInvalidArgument) << text;
  }
}

}  // namespace
}  // namespace flotilla
