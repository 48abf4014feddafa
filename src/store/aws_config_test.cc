#include "store/aws_config.h"

#include <gtest/gtest.h>

#include "base/files.h"

namespace flotilla {
namespace {

using Variables = std::map<std::string, std::string>;

Environment environment_of(Variables variables) {
  return [variables = std::move(variables)](const char* name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional(found->second);
  };
}

const AwsFiles kFiles{
    "# comment\n[default]\naws_access_key_id = AKID\naws_secret_access_key=se#cr;et+/= # mine\n\n"
    "[lab]\naws_access_key_id = LAB\naws_secret_access_key = s2\naws_session_token = t2\n",
    "[default]\nregion = eu-west-1\n[profile lab]\nregion = auto\nendpoint_url = https://h:9000\nca_bundle = /ca.pem\n"
    "s3 =\n  addressing_style = path\n[profile far]\nsso_session = x\n"};

Result<AwsSettings> settings(std::string_view profile, Variables variables, const AwsFiles& files = kFiles) {
  return aws_settings(files, profile, environment_of(std::move(variables)));
}

TEST(AwsConfigTest, TakesKeysFromTheEnvironmentFirst) {
  const auto found =
      settings("", {{"AWS_ACCESS_KEY_ID", "E"}, {"AWS_SECRET_ACCESS_KEY", "s"}, {"AWS_SESSION_TOKEN", "t"}});
  ASSERT_TRUE(found.ok()) << found.status().to_string();
  EXPECT_EQ(found->credentials->access_key, "E");
  EXPECT_EQ(found->credentials->secret_key, "s");
  EXPECT_EQ(found->credentials->session_token, "t");
  EXPECT_EQ(found->region, "eu-west-1");
  const Variables both = {{"AWS_ACCESS_KEY_ID", "E"}, {"AWS_SECRET_ACCESS_KEY", "s"}};
  EXPECT_EQ(settings("lab", both)->credentials->access_key, "LAB");
}

TEST(AwsConfigTest, ReadsTheProfile) {
  const auto plain = settings("", {});
  EXPECT_EQ(plain->credentials->access_key, "AKID");
  EXPECT_EQ(plain->credentials->secret_key, "se#cr;et+/=");
  EXPECT_EQ(plain->credentials->session_token, "");
  const auto lab = settings("", {{"AWS_PROFILE", "lab"}});
  EXPECT_EQ(lab->credentials->session_token, "t2");
  EXPECT_EQ(lab->region, "auto");
  EXPECT_EQ(lab->endpoint, "https://h:9000");
  EXPECT_EQ(lab->ca_bundle, "/ca.pem");
  EXPECT_EQ(lab->addressing_style, "path");
}

TEST(AwsConfigTest, VariablesWinOverFiles) {
  const auto found =
      settings("lab", {{"AWS_DEFAULT_REGION", "r1"}, {"AWS_ENDPOINT_URL", "http://e"}, {"AWS_CA_BUNDLE", "/c"}});
  EXPECT_EQ(found->region, "r1");
  EXPECT_EQ(found->endpoint, "http://e");
  EXPECT_EQ(found->ca_bundle, "/c");
  EXPECT_EQ(settings("lab", {{"AWS_DEFAULT_REGION", "r1"}, {"AWS_REGION", "r2"}})->region, "r2");
  EXPECT_EQ(settings("", {{"AWS_ENDPOINT_URL", "http://e"}, {"AWS_ENDPOINT_URL_S3", "http://s"}})->endpoint,
            "http://s");
}

TEST(AwsConfigTest, SaysWhatIsMissing) {
  EXPECT_EQ(settings("none", {}).status().code(), StatusCode::kNotFound);
  EXPECT_EQ(settings("", {{"AWS_PROFILE", "none"}}).status().code(), StatusCode::kNotFound);
  EXPECT_EQ(settings("", {{"AWS_ACCESS_KEY_ID", "E"}}).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(settings("", {{"AWS_SECRET_ACCESS_KEY", "s"}}).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(settings("far", {}).status().code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(settings("", {}, {"[default]\naws_access_key_id = A\n", {}}).status().code(), StatusCode::kInvalidArgument);
  EXPECT_FALSE(settings("", {}, {})->credentials);
}

TEST(AwsConfigTest, RefusesLinesThatMeanNothing) {
  for (const char* text : {"a = b", "[s", "[]\n", "[s]\nsecret", "[s]\n= secret"}) {
    const auto parsed = parse_aws_config(text);
    EXPECT_EQ(parsed.status().code(), StatusCode::kInvalidArgument) << text;
    EXPECT_EQ(parsed.status().message().find("secret"), std::string::npos);
  }
  EXPECT_EQ(parse_aws_config("[s]\r\na = b\r\n").value()["s"]["a"], "b");
}

TEST(AwsConfigTest, ReadsTheFilesThatVariablesName) {
  const TemporaryFolder folder;
  ASSERT_TRUE(write_file_atomically(folder.path() / ".aws/credentials", std::string_view("home")).ok());
  ASSERT_TRUE(write_file_atomically(folder.path() / "other", std::string_view("named")).ok());
  const std::string home = folder.path().string();
  EXPECT_EQ(read_aws_files(environment_of({{"HOME", home}}))->credentials, "home");
  EXPECT_FALSE(read_aws_files(environment_of({{"HOME", home}}))->config);
  EXPECT_EQ(read_aws_files(environment_of({{"HOME", home}, {"AWS_CONFIG_FILE", home + "/other"}}))->config, "named");
}

}  // namespace
}  // namespace flotilla
