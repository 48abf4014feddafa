#include "config/document.h"

#include <fmt/format.h>

namespace flotilla {
namespace {

std::string cell(std::string_view text) {
  std::string result;
  for (const char c : text) {
    if (c == '|') result += '\\';
    result += c;
  }
  return result;
}

}  // namespace

std::string markdown(const Schema& schema) {
  std::string text;
  for (const Section& section : schema) {
    text += fmt::format("\n## [{}]\n\n{}.\n\n| key | value | default | meaning |\n|---|---|---|---|\n", section.name,
                        section.help);
    for (const Field& field : section.fields) {
      text += fmt::format("| `{}` | {} | `{}` | {} |\n", field.name, cell(expected_text(field)),
                          cell(value_text(field)), cell(field.help));
    }
  }
  return text;
}

}  // namespace flotilla
