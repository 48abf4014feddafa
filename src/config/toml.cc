#include "config/toml.h"

#include <algorithm>

#include <fmt/format.h>
#define TOML_EXCEPTIONS 0
#include <toml++/toml.h>

namespace flotilla {
namespace {

std::string place(std::string_view name, const toml::source_region& source) {
  return fmt::format("{}:{}:{}", name, source.begin.line, source.begin.column);
}

std::string_view type_name(toml::node_type type) {
  switch (type) {
    case toml::node_type::table: return "a table";
    case toml::node_type::array: return "an array";
    case toml::node_type::string: return "text";
    case toml::node_type::integer: return "an integer";
    case toml::node_type::floating_point: return "a number";
    case toml::node_type::boolean: return "a truth value";
    case toml::node_type::date: return "a date";
    case toml::node_type::time: return "a time";
    case toml::node_type::date_time: return "a date and time";
    case toml::node_type::none: break;
  }
  return "nothing";
}

Status assign(const Field& field, const toml::node& node) {
  if (const auto* value = node.as_boolean()) return set_value(field, value->get());
  if (const auto* value = node.as_integer()) return set_value(field, value->get());
  if (const auto* value = node.as_floating_point()) return set_value(field, value->get());
  if (const auto* value = node.as_string()) return set_value(field, value->get());
  return invalid_argument(fmt::format("expected {}, got {}", expected_text(field), type_name(node.type())));
}

Status parse_section(const Schema& schema, const Section& section, const toml::table& table, std::string_view name) {
  for (const auto& [key, node] : table) {
    const std::string full = fmt::format("{}.{}", section.name, key.str());
    const auto field = std::find_if(section.fields.begin(), section.fields.end(),
                                    [&, &key = key](const Field& f) { return f.name == key.str(); });
    if (field == section.fields.end()) {
      return invalid_argument(fmt::format("{}: unknown key {}; the nearest known key is {}", place(name, key.source()),
                                          quoted_text(full), nearest_key(schema, full)));
    }
    FLOTILLA_RETURN_IF_ERROR(assign(*field, node).with_context(full).with_context(place(name, node.source())));
  }
  return ok_status();
}

}  // namespace

Status parse_toml(const Schema& schema, std::string_view text, std::string_view name) {
  const toml::parse_result parsed = toml::parse(text);
  if (!parsed) {
    return invalid_argument(fmt::format("{}: {}", place(name, parsed.error().source()), parsed.error().description()));
  }
  for (const auto& [key, node] : parsed.table()) {
    const auto section =
        std::find_if(schema.begin(), schema.end(), [&, &key = key](const Section& s) { return s.name == key.str(); });
    if (section == schema.end()) {
      const bool table = node.is_table();
      return invalid_argument(fmt::format("{}: unknown {} {}; the nearest known {} is {}", place(name, key.source()),
                                          table ? "section" : "key", quoted_text(key.str()), table ? "section" : "key",
                                          table ? nearest_section(schema, key.str()) : nearest_key(schema, key.str())));
    }
    const toml::table* table = node.as_table();
    if (table == nullptr) {
      return invalid_argument(fmt::format("{}: {}: expected a section ([{}]), got {}", place(name, node.source()),
                                          section->name, section->name, type_name(node.type())));
    }
    FLOTILLA_RETURN_IF_ERROR(parse_section(schema, *section, *table, name));
  }
  return ok_status();
}

std::string print_toml(const Schema& schema, bool comments) {
  std::string text;
  for (const Section& section : schema) {
    if (!text.empty()) text += '\n';
    if (comments) text += fmt::format("# {}\n", section.help);
    text += fmt::format("[{}]\n", section.name);
    for (const Field& field : section.fields) {
      text += fmt::format("{} = {}", field.name, value_text(field));
      if (comments) text += fmt::format("  # {}", field.help);
      text += '\n';
    }
  }
  return text;
}

}  // namespace flotilla
