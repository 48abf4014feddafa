#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/files.h"
#include "config/command_line.h"
#include "config/document.h"
#include "config/field.h"
#include "config/toml.h"

// What a program does with a config struct. Order of sources, later ones winning: the defaults of the members, the TOML
// file, the command line, what the program itself assigns; then resolve(). On an error the config is unchanged.
namespace flotilla {

// not_found or permission_denied when the file can't be read; else see parse_toml (config/toml.h).
template <typename Config>
Status load_config(Config& config, const std::filesystem::path& path) {
  FLOTILLA_ASSIGN_OR_RETURN(const std::string text, read_text_file(path));
  Config changed = config;
  FLOTILLA_RETURN_IF_ERROR(parse_toml(schema_of(changed), text, path.string()));
  config = std::move(changed);
  return ok_status();
}

template <typename Config>
Status parse_config(Config& config, std::string_view toml, std::string_view name) {
  Config changed = config;
  FLOTILLA_RETURN_IF_ERROR(parse_toml(schema_of(changed), toml, name));
  config = std::move(changed);
  return ok_status();
}

// Returns the arguments that are no overrides (config/command_line.h).
template <typename Config>
Result<std::vector<std::string>> override_config(Config& config, std::span<const std::string> arguments) {
  Config changed = config;
  FLOTILLA_ASSIGN_OR_RETURN(auto others, apply_overrides(schema_of(changed), arguments));
  config = std::move(changed);
  return others;
}

// Checks every field, then lets the struct check what involves several and fill in what follows from others
// (Config::resolve). invalid_argument "section.key: ...".
template <typename Config>
Status resolve_config(Config& config) {
  Config changed = config;
  for (const Section& section : schema_of(changed)) {
    for (const Field& field : section.fields) {
      FLOTILLA_RETURN_IF_ERROR(
          check_value(field).with_context(std::string(section.name) + "." + std::string(field.name)));
    }
  }
  FLOTILLA_RETURN_IF_ERROR(changed.resolve());
  config = std::move(changed);
  return ok_status();
}

// The whole config as TOML that reads back equal.
template <typename Config>
std::string config_toml(Config config, bool comments = false) {
  return print_toml(schema_of(config), comments);
}

// {"section": {"key": value}}
nlohmann::json schema_json(const Schema& schema);
template <typename Config>
nlohmann::json config_json(Config config) {
  return schema_json(schema_of(config));
}

}  // namespace flotilla
