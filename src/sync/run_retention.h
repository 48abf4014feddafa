#pragma once

#include <cstdint>
#include <map>
#include <stop_token>

#include "base/clock.h"
#include "base/status.h"
#include "store/object_store.h"
#include "sync/retention.h"

namespace flotilla {

// Retention of one run on its hub: looks, and removes what plan_retention() says. Any number of processes may do so at
// a time; one that is killed leaves the rest to the next. One thread.
class RunRetention {
 public:
  // The store outlives it. `learner` signs head and manifests.
  RunRetention(ObjectStore& store, HubLayout layout, PublicKey learner, const Clock& clock = system_clock())
      : store_(store), layout_(std::move(layout)), learner_(learner), clock_(clock) {}

  // Reads the hub and removes nothing. not_found when no version is published; any error of the hub: what could not be
  // read might keep something.
  Result<RetentionPlan> plan(const RetentionRules& rules);

  struct Removed {
    std::uint64_t objects = 0;
    std::uint64_t bytes = 0;
    Status status;  // why not all: an error, or cancelled
  };
  // At most so many objects, from the plan's beginning.
  Removed remove(const RetentionPlan& plan, std::size_t objects_max, const std::stop_token& stop = {});

 private:
  Result<VersionLinks> links_of(Version version);
  Result<std::vector<Lease>> read_leases(const RetentionRules& rules, std::chrono::seconds now);

  ObjectStore& store_;
  const HubLayout layout_;
  const PublicKey learner_;
  const Clock& clock_;
  std::map<Version, VersionLinks> links_;  // a version has one manifest for all time
};

}  // namespace flotilla
