#include "sync/retention.h"

#include <algorithm>
#include <charconv>
#include <iterator>
#include <map>
#include <set>
#include <string>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace flotilla {
namespace {

constexpr std::chrono::seconds kClaimTime = std::chrono::hours(24);      // since the last claim of an epoch
constexpr std::chrono::seconds kAboveHeadTime = std::chrono::hours(24);  // of groups, at least
constexpr std::uint64_t kEpochsKept = 3;
constexpr std::string_view kManifest = "manifest.json", kAnchor = "anchor";

// The number that a key has next, up to a '/', which goes with it.
std::optional<std::uint64_t> take_number(std::string_view& rest) {
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), number);
  if (error != std::errc() || end == rest.data() + rest.size() || *end != '/') return std::nullopt;
  rest.remove_prefix(static_cast<std::size_t>(end - rest.data()) + 1);
  return number;
}

bool is_damaged(const Status& status) {
  return status.code() == StatusCode::kDataLoss || status.code() == StatusCode::kPermissionDenied;
}

struct HeldVersion {
  std::vector<const ObjectInfo*> objects;  // the manifest first, if there is one
  bool manifest = false;
  bool anchor = false;
};

class Planner {
 public:
  Planner(const HubLayout& layout, const RetentionView& view, const RetentionRules& rules, const LinksOfVersion& links)
      : layout_(layout), view_(view), rules_(rules), links_(links) {}

  Result<RetentionPlan> plan() {
    sort_objects();
    FLOTILLA_RETURN_IF_ERROR(keep_head());
    FLOTILLA_RETURN_IF_ERROR(keep_recent());
    FLOTILLA_RETURN_IF_ERROR(keep_leased());
    FLOTILLA_RETURN_IF_ERROR(keep_of_groups());
    for (const ObjectInfo* group : old_groups_) remove(group);
    plan_.groups = old_groups_.size();
    remove_versions();
    remove_claims();
    for (const ObjectInfo& object : view_.objects) plan_.kept_bytes += object.size;
    plan_.kept_bytes -= plan_.remove_bytes;
    plan_.kept.assign(keep_.begin(), keep_.end());
    return std::move(plan_);
  }

 private:
  bool older_than(const ObjectInfo& object, std::chrono::seconds age) const {
    return object.modified.count() > 0 && view_.now - object.modified >= age;
  }
  Version oldest_trained_on() const {
    return Version(view_.head.value() - std::min(rules_.staleness, view_.head.value()));
  }

  void sort_objects() {
    const std::string weights = layout_.weights_folder(), rollouts = layout_.rollouts(), claims = layout_.claims();
    for (const ObjectInfo& object : view_.objects) {
      std::string_view rest = object.key;
      if (rest.starts_with(weights)) {
        rest.remove_prefix(weights.size());
        if (const auto number = take_number(rest)) add_to_version(versions_[Version(*number)], object, rest);
      } else if (rest.starts_with(rollouts)) {
        rest.remove_prefix(rollouts.size());
        add_group(object, take_number(rest));
      } else if (rest.starts_with(claims)) {
        rest.remove_prefix(claims.size());
        if (const auto epoch = take_number(rest)) claims_[*epoch].push_back(&object);
      }
    }
  }

  static void add_to_version(HeldVersion& version, const ObjectInfo& object, std::string_view name) {
    version.manifest = version.manifest || name == kManifest;
    version.anchor = version.anchor || name == kAnchor;
    version.objects.insert(name == kManifest ? version.objects.begin() : version.objects.end(), &object);
  }

  // What no learner would read, under a number that is none, is only a matter of time.
  void add_group(const ObjectInfo& object, std::optional<std::uint64_t> number) {
    // Head was read before the listing: what is above it may be of a version that has come since.
    const bool above = number && Version(*number) > view_.head;
    const bool used = number && !above && Version(*number) >= oldest_trained_on();
    if (!used && older_than(object, above ? std::max(rules_.groups, kAboveHeadTime) : rules_.groups)) {
      old_groups_.push_back(&object);
    } else if (number) {
      versions_with_groups_.insert(Version(*number));
    }
  }

  // Keeps the version and its bases down to an anchor. False when there is no such way: nobody can read the version.
  Result<bool> keep(Version version) {
    std::vector<Version> way;
    while (true) {
      const auto found = versions_.find(version);
      if (found == versions_.end() || !found->second.manifest) break;
      way.push_back(version);
      if (keep_.contains(version)) break;
      const auto links = links_(version);
      if (is_damaged(links.status())) {
        broken_ = links.status();
        break;
      }
      FLOTILLA_RETURN_IF_ERROR(links.status());
      if (links->anchor && found->second.anchor) {
        keep_.insert(way.begin(), way.end());
        return true;
      }
      if (!links->base || *links->base >= version) break;
      version = *links->base;
    }
    const bool joins = !way.empty() && keep_.contains(way.back());
    // A way that is broken is kept as far as it goes: who holds its base may be on it.
    keep_.insert(way.begin(), way.end());
    return joins;
  }

  Status keep_all(Version first, Version last) {
    for (auto it = versions_.lower_bound(first); it != versions_.end() && it->first <= last; ++it) {
      FLOTILLA_RETURN_IF_ERROR(keep(it->first).status());
    }
    return ok_status();
  }

  Status keep_head() {
    FLOTILLA_ASSIGN_OR_RETURN(const bool whole, keep(view_.head));
    if (whole) return ok_status();
    FLOTILLA_RETURN_IF_ERROR(broken_);
    return unavailable(
        fmt::format("the listing of '{}' does not lead from version {}, which head names, to an anchor: nothing is "
                    "removed on its word",
                    layout_.weights_folder(), view_.head.value()));
  }

  Status keep_recent() {
    Version floor = view_.head;
    int anchors = 0;
    for (auto it = versions_.upper_bound(view_.head); it != versions_.begin() && anchors < 2;) {
      --it;
      if (!it->second.manifest) continue;
      floor = it->first;
      anchors += it->second.anchor;
    }
    FLOTILLA_RETURN_IF_ERROR(keep_all(std::min(floor, oldest_trained_on()), view_.head));
    const auto first = std::ranges::find_if(versions_, [](const auto& entry) { return entry.second.manifest; });
    return keep(first->first).status();
  }

  Status keep_leased() {
    for (const Lease& lease : view_.leases) {
      if (view_.now - lease.written >= rules_.leases) continue;
      for (const Version version : lease.versions) FLOTILLA_RETURN_IF_ERROR(keep(version).status());
    }
    return ok_status();
  }

  // A group that could be trained on had no token of a version further above its oldest one.
  Status keep_of_groups() {
    for (const Version version : versions_with_groups_) {
      if (version > view_.head) break;
      const Version last(version.value() + rules_.staleness);
      FLOTILLA_RETURN_IF_ERROR(keep_all(version, std::min(last, view_.head)));
    }
    return ok_status();
  }

  void remove(const ObjectInfo* object) {
    plan_.remove.push_back(*object);
    plan_.remove_bytes += object->size;
  }

  void remove_versions() {
    for (auto it = versions_.lower_bound(view_.head); it != versions_.begin();) {
      --it;
      if (keep_.contains(it->first)) continue;
      ++plan_.versions;
      for (const ObjectInfo* object : it->second.objects) remove(object);
    }
  }

  // Whole epochs from the lowest of a row on: together the claims of an epoch say that it is over. The last three of a
  // row stay, whatever somebody has claimed far above; what stands alone below stays too, and holds up nothing.
  void remove_claims() {
    bool all = false;  // of the row so far
    std::optional<std::uint64_t> before;
    for (const auto& [epoch, claims] : claims_) {
      if (!before || *before + 1 != epoch) all = true;
      before = epoch;
      for (std::uint64_t next = 1; next <= kEpochsKept; ++next) all = all && claims_.contains(epoch + next);
      all = all && std::ranges::all_of(claims, [&](const auto* claim) { return older_than(*claim, kClaimTime); });
      if (!all) continue;
      plan_.claims += claims.size();
      for (const ObjectInfo* claim : claims) remove(claim);
    }
  }

  const HubLayout& layout_;
  const RetentionView& view_;
  const RetentionRules& rules_;
  const LinksOfVersion& links_;
  std::map<Version, HeldVersion> versions_;
  std::vector<const ObjectInfo*> old_groups_;
  std::set<Version> versions_with_groups_;  // that stay
  std::map<std::uint64_t, std::vector<const ObjectInfo*>> claims_;
  std::set<Version> keep_;
  Status broken_;  // why a manifest cannot be read
  RetentionPlan plan_;
};

}  // namespace

std::vector<Version> leased_versions(std::string_view status) {
  std::vector<Version> versions;
  const nlohmann::json object = nlohmann::json::parse(status, nullptr, false);
  if (!object.is_object()) return versions;
  for (const char* name : {"version", "newest"}) {
    const auto field = object.find(name);
    if (field != object.end() && field->is_number_unsigned()) versions.emplace_back(field->get<std::uint64_t>());
  }
  return versions;
}

Result<RetentionPlan> plan_retention(const HubLayout& layout, const RetentionView& view, const RetentionRules& rules,
                                     const LinksOfVersion& links) {
  return Planner(layout, view, rules, links).plan();
}

}  // namespace flotilla
