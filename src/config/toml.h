#pragma once

#include <string>
#include <string_view>

#include "config/field.h"

namespace flotilla {

// Assigns what the TOML text says: [section] tables with the schema's keys. `name` stands for the text in errors, which
// are invalid_argument: "NAME:LINE:COLUMN: section.key: expected ..., got ...". Keys that the schema lacks are errors
// that name the nearest known one. Fields that were read before an error keep their new values.
Status parse_toml(const Schema& schema, std::string_view text, std::string_view name);

// All fields as TOML that parse_toml reads back to the same values; with each field's help as a comment when asked.
std::string print_toml(const Schema& schema, bool comments);

}  // namespace flotilla
