#pragma once

#include <string_view>

#include <nlohmann/json_fwd.hpp>

#include "base/status.h"

namespace flotilla {

// Parses JSON that a stranger may have written. data_loss for text that is not JSON or not UTF-8, nesting deeper than
// 64 and a key that occurs twice in one object (of which most parsers silently keep the last).
Result<nlohmann::json> parse_strict_json(std::string_view text);

}  // namespace flotilla
