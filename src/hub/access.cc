#include "hub/access.h"

#include <algorithm>
#include <optional>
#include <vector>

#include <fmt/format.h>

#include "store/directory_files.h"
#include "store/object_store.h"

namespace flotilla {
namespace {

constexpr std::string_view kRoles[] = {"reader", "worker", "learner"};
constexpr std::string_view kLearnersEvents = "learner";

// What comes before '.' or '/' in names of claims.
bool is_number(std::string_view text) {
  return text.size() == 10 && std::ranges::all_of(text, [](char letter) { return letter >= '0' && letter <= '9'; });
}

// Of claims/<epoch>/<name>: empty for <block>.<lease>, which is whoever's comes first; <block>.<lease>.<worker> says
// that the worker has done the block.
std::optional<std::string_view> writer_of_claim(std::string_view epoch, std::string_view name) {
  constexpr std::size_t kShort = 21;
  const bool numbers = is_number(epoch) && is_number(name.substr(0, 10)) && name.size() >= kShort && name[10] == '.' &&
                       is_number(name.substr(11, 10));
  if (!numbers) return std::nullopt;
  if (name.size() == kShort) return std::string_view();
  if (name[kShort] != '.' || name.size() == kShort + 1) return std::nullopt;
  return name.substr(kShort + 1);
}

bool is_within(std::string_view key, std::string_view scope) {
  return key.size() > scope.size() && key.starts_with(scope) && key[scope.size()] == '/';
}

// Whose a key below a run is (docs/formats/hub.md): a worker's id, empty for claims, which any worker writes; nothing
// for keys that no worker writes.
std::optional<std::string_view> writer_of(std::string_view below_run) {
  const std::vector<std::string_view> parts = split_key(below_run);
  if (parts.size() == 3 && parts[0] == "workers" && parts[2] == "status") return parts[1];
  if (parts.size() == 3 && parts[0] == "events" && parts[1] != kLearnersEvents) return parts[1];
  if (parts.size() == 3 && parts[0] == "claims") return writer_of_claim(parts[1], parts[2]);
  if (parts.size() == 4 && parts[0] == "rollouts") return parts[2];
  return std::nullopt;
}

std::string_view below(std::string_view key, std::string_view scope) { return key.substr(scope.size() + 1); }

}  // namespace

std::string_view hub_role_name(HubRole role) { return kRoles[static_cast<std::size_t>(role)]; }

Result<HubRole> parse_hub_role(std::string_view name) {
  for (std::size_t i = 0; i < std::size(kRoles); ++i) {
    if (kRoles[i] == name) return static_cast<HubRole>(i);
  }
  return invalid_argument(fmt::format("role '{}': expected reader, worker or learner", name));
}

std::string_view owner_of(std::string_view key_or_scope) { return key_or_scope.substr(0, key_or_scope.find('/')); }

Status check_grant(const HubGrant& grant) {
  FLOTILLA_RETURN_IF_ERROR(check_key(grant.scope));
  const auto names = split_key(grant.scope).size();
  const bool worker = grant.role == HubRole::kWorker;
  if (names > 2 || (worker && names != 2)) {
    return invalid_argument(fmt::format("scope '{}': expected OWNER/RUN{}", grant.scope, worker ? "" : " or OWNER"));
  }
  if (worker && !grant.worker.empty() &&
      (grant.worker.find('/') != std::string::npos || grant.worker == kLearnersEvents ||
       !check_key(grant.worker).ok())) {
    return invalid_argument(fmt::format("'{}' is no worker's id; flotilla work prints it", grant.worker));
  }
  if (!worker && !grant.worker.empty()) return invalid_argument("only a worker's token has a worker's id");
  return ok_status();
}

Status check_access(const HubGrant& grant, HubAction action, std::string_view key) {
  const std::string_view role = hub_role_name(grant.role);
  if (!is_within(key, grant.scope)) {
    return permission_denied(fmt::format("this token is for {}/ only", grant.scope));
  }
  if (action == HubAction::kRead || action == HubAction::kList || grant.role == HubRole::kLearner) return ok_status();
  if (grant.role == HubRole::kReader || action == HubAction::kRemove) {
    return permission_denied(
        fmt::format("the token of a {} may not {}", role, action == HubAction::kRemove ? "remove objects" : "write"));
  }
  const auto writer = writer_of(below(key, grant.scope));
  if (!writer || !(writer->empty() || grant.worker.empty() || *writer == grant.worker)) {
    return permission_denied(fmt::format("a worker{}{} writes its own groups, events, claims and status only",
                                         grant.worker.empty() ? "" : " ", grant.worker));
  }
  return ok_status();
}

std::string_view worker_of(const HubGrant& grant, std::string_view key) {
  return writer_of(below(key, grant.scope)).value_or(std::string_view());
}

bool writes_once(const HubGrant& grant, std::string_view key) {
  return grant.role == HubRole::kWorker && is_within(key, grant.scope) &&
         !below(key, grant.scope).starts_with("workers/");
}

}  // namespace flotilla
