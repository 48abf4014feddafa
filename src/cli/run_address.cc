#include "cli/run_address.h"

#include <fmt/format.h>

#include <algorithm>

namespace flotilla {
namespace {

bool is_name(std::string_view text) {
  return !text.empty() && text.size() <= 100 && text != "." && text != ".." &&
         std::all_of(text.begin(), text.end(), [](char c) {
           return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_' ||
                  c == '.';
         });
}

}  // namespace

Result<RunAddress> RunAddress::parse(std::string_view text) {
  const auto wrong = [&](std::string_view what) {
    return invalid_argument(
        fmt::format("'{}' does not name a run: {}; expected HUB/OWNER/RUN, for example /srv/hub/ada/demo", text, what));
  };
  if (text.find("://") != std::string_view::npos) return wrong("a hub is a folder");
  while (text.ends_with('/')) text.remove_suffix(1);
  const std::size_t last = text.rfind('/');
  if (last == std::string_view::npos || last == 0) return wrong("too few parts");
  const std::size_t before = text.rfind('/', last - 1);
  if (before == std::string_view::npos) return wrong("too few parts");
  RunAddress address{std::string(text.substr(0, before)), std::string(text.substr(before + 1, last - before - 1)),
                     std::string(text.substr(last + 1))};
  if (address.hub.empty()) return wrong("the hub is empty");
  if (!is_name(address.owner)) return wrong("the owner may hold letters, digits, '.', '_' and '-' only");
  if (!is_name(address.run)) return wrong("the run's name may hold letters, digits, '.', '_' and '-' only");
  return address;
}

Result<std::unique_ptr<ObjectStore>> open_hub(const RunAddress& address, bool create) {
  return open_directory_store(address.hub, create).with_context("hub " + address.hub);
}

}  // namespace flotilla
