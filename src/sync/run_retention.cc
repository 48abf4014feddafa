#include "sync/run_retention.h"

#include <iterator>

#include <fmt/format.h>

#include "sync/head.h"
#include "sync/manifest.h"
#include "sync/store_access.h"

namespace flotilla {
namespace {

constexpr std::size_t kStatusBytesMax = 65536;

bool damaged(const Status& status) {
  return status.code() == StatusCode::kDataLoss || status.code() == StatusCode::kPermissionDenied;
}

}  // namespace

Result<VersionLinks> RunRetention::links_of(Version version) {
  if (const auto known = links_.find(version); known != links_.end()) return known->second;
  const std::string key = layout_.manifest(version);
  const auto read = [&]() -> Result<Manifest> {
    FLOTILLA_ASSIGN_OR_RETURN(const Bytes bytes, read_small(store_, key, kManifestBytesMax));
    FLOTILLA_ASSIGN_OR_RETURN(Manifest manifest, manifest_from_json(as_text(bytes), learner_).with_context(key));
    if (manifest.run == layout_.prefix && manifest.version == version) return manifest;
    return data_loss(
        fmt::format("'{}' is the manifest of version {} of run '{}'", key, manifest.version.value(), manifest.run));
  };
  auto manifest = read();
  if (damaged(manifest.status())) manifest = read();
  if (!manifest.ok()) return manifest.status();
  VersionLinks links{.base = {}, .anchor = manifest->anchor.has_value()};
  if (manifest->delta) links.base = manifest->delta->base;
  return links_.emplace(version, links).first->second;
}

Result<std::vector<Lease>> RunRetention::read_leases(const RetentionRules& rules, std::chrono::seconds now) {
  std::vector<Lease> leases;
  FLOTILLA_ASSIGN_OR_RETURN(const auto objects, list_all(store_, layout_.workers()));
  for (const ObjectInfo& object : objects) {
    // Of unknown age: as if just written.
    const std::chrono::seconds written = object.modified.count() > 0 ? object.modified : now;
    if (now - written >= rules.leases) continue;
    const auto status = read_small(store_, object.key, kStatusBytesMax);
    // Gone, or no status at all: a worker's own affair.
    if (status.status().code() == StatusCode::kNotFound || status.status().code() == StatusCode::kDataLoss) continue;
    if (!status.ok()) return status.status();
    leases.push_back({leased_versions(as_text(*status)), written});
  }
  return leases;
}

Result<RetentionPlan> RunRetention::plan(const RetentionRules& rules) {
  // Before the listing, which then has all that head names.
  FLOTILLA_ASSIGN_OR_RETURN(const Bytes bytes, read_small(store_, layout_.head(), kHeadBytesMax));
  FLOTILLA_ASSIGN_OR_RETURN(const Head head, head_from_json(as_text(bytes), learner_));
  if (head.run != layout_.prefix) {
    return failed_precondition(
        fmt::format("'{}' belongs to the run '{}', not to '{}'", layout_.head(), head.run, layout_.prefix));
  }
  RetentionView view{.head = head.version, .objects = {}, .leases = {}, .now = {}};
  view.now = std::chrono::duration_cast<std::chrono::seconds>(clock_.wall());
  for (const std::string& folder : {layout_.weights_folder(), layout_.rollouts(), layout_.claims()}) {
    FLOTILLA_ASSIGN_OR_RETURN(auto objects, list_all(store_, folder));
    std::move(objects.begin(), objects.end(), std::back_inserter(view.objects));
  }
  const LinksOfVersion links = [this](Version version) { return links_of(version); };
  FLOTILLA_ASSIGN_OR_RETURN(RetentionPlan plan, plan_retention(layout_, view, rules, links));
  // Leases only keep versions: where none is to go, nobody has to be asked.
  if (plan.versions == 0) return plan;
  FLOTILLA_ASSIGN_OR_RETURN(view.leases, read_leases(rules, view.now));
  return plan_retention(layout_, view, rules, links);
}

RunRetention::Removed RunRetention::remove(const RetentionPlan& plan, std::size_t objects_max,
                                           const std::stop_token& stop) {
  Removed removed;
  for (const ObjectInfo& object : plan.remove) {
    if (removed.objects == objects_max) break;
    if (stop.stop_requested()) {
      removed.status = cancelled("asked to stop");
      break;
    }
    removed.status = store_.remove(object.key);
    for (int again = 1; again < kStoreAttempts && may_pass(removed.status); ++again) {
      removed.status = store_.remove(object.key);
    }
    if (!removed.status.ok()) break;
    ++removed.objects;
    removed.bytes += object.size;
  }
  return removed;
}

}  // namespace flotilla
