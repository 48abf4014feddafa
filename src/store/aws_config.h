#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "store/sigv4.h"
#include "store/url.h"

// Credentials and settings where AWS' own tools look for them: the environment, ~/.aws/credentials and ~/.aws/config.
namespace flotilla {

// Section, then name, then value. A line below a name that is indented is "NAME.ITS_NAME".
using AwsSections = std::map<std::string, std::map<std::string, std::string>, std::less<>>;
// invalid_argument with the number of a line that is no section, setting or comment. Never quotes a value.
Result<AwsSections> parse_aws_config(std::string_view text);

// The texts of the two files; nothing where a file is missing.
struct AwsFiles {
  std::optional<std::string> credentials;
  std::optional<std::string> config;
};
// From AWS_SHARED_CREDENTIALS_FILE and AWS_CONFIG_FILE, or ~/.aws.
Result<AwsFiles> read_aws_files(const Environment& environment);

struct AwsSettings {
  std::optional<AwsCredentials> credentials;
  std::string region;
  std::string endpoint;
  std::string ca_bundle;
  std::string addressing_style;  // "path", "virtual" or "auto"; empty when nothing says it
  std::string source;            // where the credentials are from, for messages
};

// AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY win over files unless `profile` is given; that is a section of the files,
// else AWS_PROFILE, else "default". Variables win over files for all the rest: AWS_REGION, AWS_DEFAULT_REGION,
// AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL, AWS_CA_BUNDLE. not_found for a profile that was named and is in neither file;
// invalid_argument for half of a pair of keys; failed_precondition for a profile whose keys come from a login or a
// program, which is not supported.
Result<AwsSettings> aws_settings(const AwsFiles& files, std::string_view profile, const Environment& environment);

}  // namespace flotilla
