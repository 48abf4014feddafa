#pragma once

#include <memory>
#include <stop_token>
#include <string>
#include <string_view>

#include "base/status.h"
#include "store/open_store.h"
#include "sync/hub_layout.h"

namespace flotilla {

// A run as people name it: HUB/OWNER/RUN, for example "/srv/hub/ada/demo". HUB is a folder, a
// bucket or a server; settings of these stand at the end: "s3://bucket/ada/demo?endpoint=https://minio.example.org".
struct RunAddress {
  std::string hub;
  std::string owner;
  std::string run;

  std::string text() const { return address_below(hub, owner + "/" + run); }
  HubLayout layout() const { return {owner + "/" + run}; }

  static Result<RunAddress> parse(std::string_view text);
};

// Opens the hub of a run, as open_store() does. With create, makes a missing folder; without it, that is not_found.
Result<std::unique_ptr<ObjectStore>> open_hub(const RunAddress& address, bool create = false,
                                              std::stop_token calm = {});

}  // namespace flotilla
