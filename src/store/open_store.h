#pragma once

#include <memory>
#include <stop_token>
#include <string>
#include <string_view>

#include "store/object_store.h"

namespace flotilla {

// The hub that an address names: a folder, a bucket (s3://BUCKET/PREFIX?...) or a hub server (https://HOST:PORT?...),
// both as s3_store.h has them. Once `calm` is requested, operations that fail are not tried again. Other schemes are
// invalid_argument.
Result<std::unique_ptr<ObjectStore>> open_store(const std::string& address, bool create, std::stop_token calm = {});

// An address is a path and, of a bucket or a server, settings that begin with '?'.
struct AddressParts {
  std::string_view path;
  std::string_view settings;  // with the '?'; empty for a folder, in whose name a '?' may stand
};
AddressParts split_address(std::string_view address);
// The address of what lies below: "s3://b?region=r" and "ada/demo" make "s3://b/ada/demo?region=r".
std::string address_below(std::string_view hub, std::string_view below);

}  // namespace flotilla
