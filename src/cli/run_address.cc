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
  const auto wrong = [whole = text](std::string_view what) {
    return invalid_argument(fmt::format(
        "'{}' does not name a run: {}; expected HUB/OWNER/RUN, for example /srv/hub/ada/demo", whole, what));
  };
  const std::size_t scheme = text.find("://");
  const std::string_view name = text.substr(0, std::min(scheme, text.size()));
  if (scheme != text.npos && name != "s3" && name != "https" && name != "http") {
    return wrong("a hub is a folder, s3://BUCKET or https://HOST");
  }
  const std::string_view settings = split_address(text).settings;
  text = split_address(text).path;
  while (text.ends_with('/')) text.remove_suffix(1);
  const std::size_t last = text.rfind('/');
  if (last == std::string_view::npos || last == 0) return wrong("too few parts");
  const std::size_t before = text.rfind('/', last - 1);
  if (before == std::string_view::npos) return wrong("too few parts");
  // The slashes of "s3://" are none between names.
  if (scheme != text.npos && before <= scheme + 3) return wrong("too few parts");
  RunAddress address{fmt::format("{}{}", text.substr(0, before), settings),
                     std::string(text.substr(before + 1, last - before - 1)), std::string(text.substr(last + 1))};
  if (address.hub.empty()) return wrong("the hub is empty");
  if (!is_name(address.owner)) return wrong("the owner may hold letters, digits, '.', '_' and '-' only");
  if (!is_name(address.run)) return wrong("the run's name may hold letters, digits, '.', '_' and '-' only");
  return address;
}

Result<std::unique_ptr<ObjectStore>> open_hub(const RunAddress& address, bool create, std::stop_token calm) {
  return open_store(address.hub, create, std::move(calm)).with_context("hub " + address.hub);
}

}  // namespace flotilla
