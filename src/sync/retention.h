#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "store/object_store.h"
#include "sync/hub_layout.h"
#include "sync/signing.h"

namespace flotilla {

// What of a run may be removed from its hub (docs/design/retention.md). Pure: what the hub holds is an argument.

// How long what may go stays all the same.
struct RetentionRules {
  std::uint64_t staleness = 3;                           // versions: older groups are not trained on
  std::chrono::seconds groups = std::chrono::hours(24);  // groups that are not trained on any more
  std::chrono::seconds leases = std::chrono::hours(1);   // of readers that do not renew them
};

// Versions that a reader holds or fetches.
struct Lease {
  std::vector<Version> versions;
  std::chrono::seconds written{0};  // by the hub's clock
};
// Of a worker's status (docs/formats/worker.md); no versions in what is none.
std::vector<Version> leased_versions(std::string_view status);

// How readers come to a version.
struct VersionLinks {
  std::optional<Version> base;  // of its delta
  bool anchor = false;
};
// Asked for versions whose manifest the listing has.
using LinksOfVersion = std::function<Result<VersionLinks>(Version)>;

struct RetentionView {
  Version head;                     // read before the listing: the listing has all of it
  std::vector<ObjectInfo> objects;  // weights/, rollouts/ and claims/ of the run, each in the order of keys
  std::vector<Lease> leases;
  std::chrono::seconds now{0};  // since 1970
};

struct RetentionPlan {
  // In this order, of which any beginning may be carried out: groups, then versions, newest first and of each the
  // manifest first, then claims. So a version that has a manifest is whole and leads down to an anchor, and groups
  // that are there can be verified, at any time.
  std::vector<ObjectInfo> remove;
  std::uint64_t remove_bytes = 0;
  std::uint64_t kept_bytes = 0;                      // of the objects of the view
  std::vector<Version> kept;                         // rising
  std::size_t groups = 0, versions = 0, claims = 0;  // to be removed
};

// Kept are, each with its bases down to an anchor: the versions since the last anchor but one; the first; those whose
// groups may be trained on; those under a lease; those of groups that stay. All weights above head stay: they may be on
// their way; groups above it stay a day at least. Groups go when they are too old to be trained on and their time is
// over; claims of epochs before the last three, a day after the last one of their epoch, lowest epochs first. An object
// whose age is not known is young.
//
// unavailable when the listing lacks what head names, as an empty one does: nothing may be concluded from it. A
// manifest that `links` calls data_loss or permission_denied stays, and nothing for its sake, except on the way from
// head; its other errors are returned.
Result<RetentionPlan> plan_retention(const HubLayout& layout, const RetentionView& view, const RetentionRules& rules,
                                     const LinksOfVersion& links);

}  // namespace flotilla
