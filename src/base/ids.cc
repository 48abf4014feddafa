#include "base/ids.h"

#include <fmt/format.h>

namespace flotilla {

std::string padded(std::uint64_t number) { return fmt::format("{:010}", number); }

}  // namespace flotilla
