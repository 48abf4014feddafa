#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "base/status.h"
#include "store/object_store.h"
#include "sync/hub_layout.h"

namespace flotilla {

// A run as people name it: HUB/OWNER/RUN, for example "/srv/hub/ada/demo". HUB is a folder.
struct RunAddress {
  std::string hub;
  std::string owner;
  std::string run;

  std::string text() const { return hub + "/" + owner + "/" + run; }
  HubLayout layout() const { return {owner + "/" + run}; }

  static Result<RunAddress> parse(std::string_view text);
};

// Opens the hub of a run. With create, makes a missing folder; without it, that is not_found.
Result<std::unique_ptr<ObjectStore>> open_hub(const RunAddress& address, bool create = false);

}  // namespace flotilla
