#include "config/command_line.h"

#include <fmt/format.h>

namespace flotilla {
namespace {

const Field* find_field(const Schema& schema, std::string_view key) {
  for (const Section& section : schema) {
    if (!key.starts_with(section.name) || key.substr(section.name.size(), 1) != ".") continue;
    for (const Field& field : section.fields) {
      if (key.substr(section.name.size() + 1) == field.name) return &field;
    }
  }
  return nullptr;
}

}  // namespace

Result<std::vector<std::string>> apply_overrides(const Schema& schema, std::span<const std::string> arguments) {
  std::vector<std::string> others;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string_view argument = arguments[i];
    if (argument == "--") {
      others.insert(others.end(), arguments.begin() + static_cast<std::ptrdiff_t>(i) + 1, arguments.end());
      break;
    }
    const std::size_t equals = argument.find('=');
    const std::string_view option = argument.substr(0, equals);
    if (!option.starts_with("--") || option.find('.') == std::string_view::npos) {
      others.emplace_back(argument);
      continue;
    }
    const std::string_view key = option.substr(2);
    const Field* field = find_field(schema, key);
    if (field == nullptr) {
      return invalid_argument(fmt::format("unknown option {}; the nearest known one is --{}", quoted_text(option),
                                          nearest_key(schema, key)));
    }
    std::string_view value;
    if (equals != std::string_view::npos) {
      value = argument.substr(equals + 1);
    } else if (i + 1 < arguments.size() && !arguments[i + 1].starts_with("--")) {
      value = arguments[++i];
    } else {
      return invalid_argument(fmt::format("{}: expected {}, got no value", option, expected_text(*field)));
    }
    FLOTILLA_RETURN_IF_ERROR(set_from_text(*field, value).with_context(option));
  }
  return others;
}

}  // namespace flotilla
