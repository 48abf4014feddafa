#pragma once

#include <string>
#include <string_view>

#include "base/status.h"

namespace flotilla {

// What a token is for (docs/hub.md).
enum class HubRole {
  kReader,   // reads what is in its scope
  kWorker,   // reads its run; writes its own groups, events, claims and heartbeat
  kLearner,  // does everything in its scope
};
std::string_view hub_role_name(HubRole role);
Result<HubRole> parse_hub_role(std::string_view name);

struct HubGrant {
  HubRole role = HubRole::kReader;
  std::string scope;   // "<owner>/<run>", or "<owner>": all runs of it; for a worker a run
  std::string worker;  // id of the worker whose keys it writes; of workers only; empty: the first one it writes as
};

// invalid_argument: scope or worker are none.
Status check_grant(const HubGrant& grant);

enum class HubAction { kRead, kList, kWrite, kRemove };
// permission_denied says why not. `key` is a key, or for listings the prefix of keys. Nothing is known of whether the
// object exists: a refusal does not tell.
Status check_access(const HubGrant& grant, HubAction action, std::string_view key);
// The worker whose key it is, as far as keys say so; empty for others. `key` is one that the grant may write.
std::string_view worker_of(const HubGrant& grant, std::string_view key);
// The grant may write the key as long as there is no object of it.
bool writes_once(const HubGrant& grant, std::string_view key);
std::string_view owner_of(std::string_view key_or_scope);

}  // namespace flotilla
