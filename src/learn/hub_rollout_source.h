#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>

#include "learn/group_validation.h"
#include "learn/rollout_source.h"
#include "rollout/claim_ledger.h"
#include "store/object_store.h"
#include "sync/hub_layout.h"

namespace flotilla {

// What the signed manifests of published versions say, kept. One thread: the loop's.
class HubVersions {
 public:
  HubVersions(ObjectStore& store, HubLayout layout, PublicKey learner)
      : store_(store), layout_(std::move(layout)), learner_(learner) {}
  // StateOfVersion.
  Result<Sha256Digest> state_of(Version version);
  Result<std::uint64_t> step_of(Version version);  // the last optimizer step that it contains
  // Whether the run has gone back behind this version: a later one, up to `newest`, contains fewer optimizer steps.
  // What such a version made is not of the lineage that survived.
  Result<bool> is_abandoned(Version version, Version newest);

 private:
  struct Known {
    Sha256Digest state;
    std::uint64_t optimizer_step = 0;
  };
  Result<Known> read(Version version);

  ObjectStore& store_;
  HubLayout layout_;
  PublicKey learner_;
  std::map<Version, Known> known_;
  std::set<Version> skipped_;  // numbers without a manifest that can be read, below the newest version
};

struct HubRolloutOptions {
  std::uint64_t group_bytes_max = 64 << 20;
  std::size_t groups_a_poll = 64;  // fetched at most; the rest waits for the next poll
};

// Groups from the hub's rollouts/ folder. Lists, page by page, the folders of the versions that are still young enough,
// and fetches what it has not seen. In a run with claims a group's worker has claimed its task.
class HubRolloutSource final : public RolloutSource {
 public:
  HubRolloutSource(ObjectStore& store, HubLayout layout, GroupExpectations expected, HubVersions& versions,
                   HubRolloutOptions options = {});
  Result<RolloutPoll> poll(Version oldest, Version newest, const std::function<bool(const GroupId&)>& known) override;

 private:
  struct Place {  // what a key says
    Version oldest;
    WorkerId worker;
    GroupId group;
  };
  static Result<Place> read_key(std::string_view prefix, std::string_view key);
  Result<ReceivedGroup> fetch(const ObjectInfo& object, const Place& place, Version newest);

  ObjectStore& store_;
  const HubLayout layout_;
  const GroupExpectations expected_;
  HubVersions& versions_;
  std::optional<ClaimLedger> claims_;  // of a run with claims
  const HubRolloutOptions options_;
  std::set<std::string> handled_;  // keys that were returned or refused
  std::set<std::string> suspect_;  // keys whose bytes were bad once: perhaps on the way, so they get another chance
};

}  // namespace flotilla
