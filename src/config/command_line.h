#pragma once

#include <span>
#include <string>
#include <vector>

#include "config/field.h"

namespace flotilla {

// Assigns every "--section.key value" and "--section.key=value" and returns the other arguments in their order. An
// option is an override when its name contains a dot. Arguments after "--" are returned as they are, without the "--".
// invalid_argument "--section.key: expected ..., got ..." as for TOML.
Result<std::vector<std::string>> apply_overrides(const Schema& schema, std::span<const std::string> arguments);

}  // namespace flotilla
