#include "store/aws_config.h"

#include <fmt/format.h>

#include <filesystem>

#include "base/files.h"

namespace flotilla {
namespace {

constexpr std::string_view kBlanks = " \t\r";

std::string_view trimmed(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(kBlanks);
  return begin == text.npos ? "" : text.substr(begin, text.find_last_not_of(kBlanks) + 1 - begin);
}

// A comment begins with '#' or ';' after a blank; a key may hold either.
std::string_view without_comment(std::string_view value) {
  for (std::size_t i = 1; i < value.size(); ++i) {
    if ((value[i] == '#' || value[i] == ';') && (value[i - 1] == ' ' || value[i - 1] == '\t'))
      return value.substr(0, i);
  }
  return value;
}

Result<std::optional<std::string>> read_optional(const std::filesystem::path& path) {
  auto text = read_text_file(path);
  if (text.ok()) return std::optional<std::string>(*std::move(text));
  if (text.status().code() == StatusCode::kNotFound) return std::optional<std::string>();
  return std::move(text).status();
}

const std::string* find(const AwsSections& sections, std::string_view section, std::string_view name) {
  const auto found = sections.find(section);
  if (found == sections.end()) return nullptr;
  const auto value = found->second.find(std::string(name));
  return value == found->second.end() || value->second.empty() ? nullptr : &value->second;
}

Result<std::optional<AwsCredentials>> environment_credentials(const Environment& environment) {
  const auto access = environment("AWS_ACCESS_KEY_ID");
  const auto secret = environment("AWS_SECRET_ACCESS_KEY");
  if (access.has_value() != secret.has_value()) {
    return invalid_argument(fmt::format("{} is set and {} is not",
                                        access ? "AWS_ACCESS_KEY_ID" : "AWS_SECRET_ACCESS_KEY",
                                        access ? "AWS_SECRET_ACCESS_KEY" : "AWS_ACCESS_KEY_ID"));
  }
  if (!access) return std::optional<AwsCredentials>();
  return std::optional(AwsCredentials{*access, *secret, environment("AWS_SESSION_TOKEN").value_or("")});
}

Result<std::optional<AwsCredentials>> section_credentials(const AwsSections& sections, std::string_view section) {
  const std::string* access = find(sections, section, "aws_access_key_id");
  const std::string* secret = find(sections, section, "aws_secret_access_key");
  if ((access == nullptr) != (secret == nullptr)) {
    return invalid_argument(
        fmt::format("profile '{}' has only one of aws_access_key_id and aws_secret_access_key", section));
  }
  if (access == nullptr) return std::optional<AwsCredentials>();
  const std::string* token = find(sections, section, "aws_session_token");
  return std::optional(AwsCredentials{*access, *secret, token == nullptr ? "" : *token});
}

}  // namespace

Result<AwsSections> parse_aws_config(std::string_view text) {
  AwsSections sections;
  std::map<std::string, std::string>* section = nullptr;
  std::string parent;
  int number = 0;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view line = text.substr(begin, end - begin);
    begin = end + 1;
    ++number;
    const auto wrong = [&](std::string_view what) {
      return invalid_argument(fmt::format("line {}: {}", number, what));
    };
    std::string_view content = trimmed(line);
    if (content.empty() || content[0] == '#' || content[0] == ';') continue;
    if (content[0] == '[') {
      const std::size_t close = content.find(']');
      if (close == content.npos) return wrong("'[' without ']'");
      std::string_view name = trimmed(content.substr(1, close - 1));
      if (name.starts_with("profile ")) name = trimmed(name.substr(8));
      if (name.empty()) return wrong("a section without a name");
      section = &sections[std::string(name)];
      parent.clear();
      continue;
    }
    const std::size_t equals = content.find('=');
    if (equals == content.npos || equals == 0) return wrong("expected NAME = VALUE");
    if (section == nullptr) return wrong("a setting before the first section");
    std::string name(trimmed(content.substr(0, equals)));
    const std::string value(trimmed(without_comment(content.substr(equals + 1))));
    const bool nested = kBlanks.find(line[0]) != kBlanks.npos && !parent.empty();
    if (nested) {
      name = parent + "." + name;
    } else {
      parent = name;
    }
    (*section)[name] = value;
  }
  return sections;
}

Result<AwsFiles> read_aws_files(const Environment& environment) {
  const std::filesystem::path folder = std::filesystem::path(environment("HOME").value_or("")) / ".aws";
  const auto path = [&](const char* variable, const char* name) {
    const auto given = environment(variable);
    return given ? std::filesystem::path(*given) : folder / name;
  };
  AwsFiles files;
  FLOTILLA_ASSIGN_OR_RETURN(files.credentials, read_optional(path("AWS_SHARED_CREDENTIALS_FILE", "credentials")));
  FLOTILLA_ASSIGN_OR_RETURN(files.config, read_optional(path("AWS_CONFIG_FILE", "config")));
  return files;
}

Result<AwsSettings> aws_settings(const AwsFiles& files, std::string_view profile, const Environment& environment) {
  FLOTILLA_ASSIGN_OR_RETURN(const AwsSections credentials,
                            parse_aws_config(files.credentials.value_or("")).with_context("AWS credentials file"));
  FLOTILLA_ASSIGN_OR_RETURN(const AwsSections config,
                            parse_aws_config(files.config.value_or("")).with_context("AWS config file"));
  const std::optional<std::string> variable = environment("AWS_PROFILE");
  const std::string section = !profile.empty() ? std::string(profile) : variable.value_or("default");
  const bool there = credentials.contains(section) || config.contains(section);

  AwsSettings settings;
  if (profile.empty()) {
    FLOTILLA_ASSIGN_OR_RETURN(settings.credentials, environment_credentials(environment));
  }
  if (settings.credentials) {
    settings.source = "the environment";
  } else {
    if (!there && (variable || !profile.empty()))
      return not_found(fmt::format("AWS profile '{}' is in no file", section));
    settings.source = fmt::format("profile '{}'", section);
    FLOTILLA_ASSIGN_OR_RETURN(settings.credentials, section_credentials(credentials, section));
    if (!settings.credentials) {
      FLOTILLA_ASSIGN_OR_RETURN(settings.credentials, section_credentials(config, section));
    }
    for (const char* name :
         {"sso_session", "sso_start_url", "credential_process", "role_arn", "web_identity_token_file"}) {
      if (settings.credentials || find(config, section, name) == nullptr) continue;
      return failed_precondition(fmt::format(
          "AWS profile '{}' gets its keys by {}, which is not supported: put them into the environment, for "
          "example with `aws configure export-credentials --format env`",
          section, name));
    }
  }

  const auto setting = [&](std::initializer_list<const char*> variables, const char* name) -> std::string {
    for (const char* each : variables) {
      if (auto value = environment(each)) return *value;
    }
    const std::string* value = find(config, section, name);
    return value == nullptr ? "" : *value;
  };
  settings.region = setting({"AWS_REGION", "AWS_DEFAULT_REGION"}, "region");
  settings.endpoint = setting({"AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"}, "endpoint_url");
  settings.ca_bundle = setting({"AWS_CA_BUNDLE"}, "ca_bundle");
  settings.addressing_style = setting({}, "s3.addressing_style");
  return settings;
}

}  // namespace flotilla
