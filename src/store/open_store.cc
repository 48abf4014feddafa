#include "store/open_store.h"

#include <algorithm>

#include <fmt/format.h>

#include "store/s3_store.h"

namespace flotilla {

Result<std::unique_ptr<ObjectStore>> open_store(const std::string& address, bool create, std::stop_token calm) {
  if (address.find("://") == std::string::npos) return open_directory_store(address, create);
  return open_s3_store(address, create, std::move(calm));
}

AddressParts split_address(std::string_view address) {
  const std::size_t mark =
      address.find("://") == address.npos ? address.size() : std::min(address.find('?'), address.size());
  return {address.substr(0, mark), address.substr(mark)};
}

std::string address_below(std::string_view hub, std::string_view below) {
  const AddressParts parts = split_address(hub);
  return fmt::format("{}{}{}{}", parts.path, parts.path.ends_with('/') ? "" : "/", below, parts.settings);
}

}  // namespace flotilla
