#pragma once

#include <string>

#include "config/field.h"

namespace flotilla {

// A Markdown table a section: key, what it may be, the value that the schema's object holds (its default), help.
std::string markdown(const Schema& schema);

}  // namespace flotilla
