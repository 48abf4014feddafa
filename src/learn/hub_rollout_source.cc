#include "learn/hub_rollout_source.h"

#include <charconv>

#include <fmt/format.h>

#include "base/log.h"
#include "rollout/group_file.h"
#include "sync/manifest.h"

namespace flotilla {
namespace {

// Whether the object itself is at fault; otherwise the hub is, and the next poll may have more luck.
bool is_final(const Status& status) {
  return status.code() == StatusCode::kDataLoss || status.code() == StatusCode::kInvalidArgument ||
         status.code() == StatusCode::kFailedPrecondition;
}

bool is_damaged(const Status& status) {
  return status.code() == StatusCode::kDataLoss || status.code() == StatusCode::kPermissionDenied;
}

}  // namespace

Result<HubVersions::Known> HubVersions::read(Version version) {
  if (const auto known = known_.find(version); known != known_.end()) return known->second;
  FLOTILLA_ASSIGN_OR_RETURN(const Object object, store_.get(layout_.manifest(version)));
  FLOTILLA_ASSIGN_OR_RETURN(const Manifest manifest, manifest_from_json(as_text(object.bytes), learner_));
  if (manifest.version != version || manifest.run != layout_.prefix) {
    return data_loss(fmt::format("the manifest of version {} is of version {} of {}", version.value(),
                                 manifest.version.value(), manifest.run));
  }
  return known_.emplace(version, Known{manifest.state, manifest.optimizer_step}).first->second;
}

Result<Sha256Digest> HubVersions::state_of(Version version) {
  FLOTILLA_ASSIGN_OR_RETURN(const Known known, read(version));
  return known.state;
}

Result<std::uint64_t> HubVersions::step_of(Version version) {
  FLOTILLA_ASSIGN_OR_RETURN(const Known known, read(version));
  return known.optimizer_step;
}

Result<bool> HubVersions::is_abandoned(Version version, Version newest) {
  FLOTILLA_ASSIGN_OR_RETURN(const Known known, read(version));
  for (Version later(version.value() + 1); later <= newest; later = Version(later.value() + 1)) {
    if (skipped_.contains(later)) continue;
    auto found = read(later);
    if (is_damaged(found.status())) found = read(later);
    if (found.ok() && found->optimizer_step < known.optimizer_step) return true;
    if (found.ok()) continue;
    // A learner that died while it wrote leaves a torn manifest under a number that no head names.
    const bool is_none =
        found.status().code() == StatusCode::kNotFound || (is_damaged(found.status()) && later < newest);
    if (!is_none) return found.status();
    skipped_.insert(later);
  }
  return false;
}

HubRolloutSource::HubRolloutSource(ObjectStore& store, HubLayout layout, GroupExpectations expected,
                                   HubVersions& versions, HubRolloutOptions options)
    : store_(store), layout_(std::move(layout)), expected_(expected), versions_(versions), options_(options) {
  if (expected_.run->claims > 0) {
    claims_.emplace(store_, layout_, task_order(*expected_.run, expected_.environment->task_count(Split::kTrain)));
  }
}

Result<HubRolloutSource::Place> HubRolloutSource::read_key(std::string_view prefix, std::string_view key) {
  const std::string_view rest = key.substr(prefix.size());
  const std::size_t first = rest.find('/'), second = rest.find('/', first + 1);
  if (first == std::string_view::npos || second == std::string_view::npos ||
      rest.find('/', second + 1) != std::string_view::npos) {
    return data_loss("a key under rollouts/ is VERSION/WORKER/GROUP");
  }
  std::uint64_t version = 0;
  const std::string_view number = rest.substr(0, first);
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), version);
  if (error != std::errc() || end != number.data() + number.size() || padded(version) != number) {
    return data_loss("the key's version is no number of ten digits");
  }
  return Place{Version(version), WorkerId(std::string(rest.substr(first + 1, second - first - 1))),
               GroupId(std::string(rest.substr(second + 1)))};
}

Result<ReceivedGroup> HubRolloutSource::fetch(const ObjectInfo& object, const Place& place, Version newest) {
  if (object.size > options_.group_bytes_max) {
    return data_loss(fmt::format("{} bytes, at most {}", object.size, options_.group_bytes_max));
  }
  FLOTILLA_ASSIGN_OR_RETURN(Object fetched, store_.get(object.key));
  FLOTILLA_ASSIGN_OR_RETURN(Group group, parse_group(fetched.bytes));
  if (group.identity.worker != place.worker || group.identity.group != place.group ||
      group.oldest_version() != place.oldest) {
    return data_loss("the group is not the one that its key names");
  }
  FLOTILLA_RETURN_IF_ERROR(
      validate_group(group, expected_, [this](Version version) { return versions_.state_of(version); }));
  for (const Episode& episode : group.episodes) {
    for (const VersionSpan& span : episode.spans) {
      if (span.version > newest) continue;  // nothing has followed it
      const auto abandoned = versions_.is_abandoned(span.version, newest);
      if (!abandoned.ok()) return unavailable(abandoned.status().message());  // not the group's fault
      if (!*abandoned) continue;
      return failed_precondition(
          fmt::format("made by version {}, from which the run has gone back", span.version.value()));
    }
  }
  if (claims_) FLOTILLA_RETURN_IF_ERROR(claims_->check(group.identity.worker, group.identity.counter));
  return ReceivedGroup{std::move(group), std::move(fetched.bytes)};
}

Result<RolloutPoll> HubRolloutSource::poll(Version oldest, Version newest,
                                           const std::function<bool(const GroupId&)>& known) {
  RolloutPoll result;
  const std::string prefix = layout_.rollouts();
  const std::string floor = prefix + padded(oldest);  // sorts before every key of that version
  handled_.erase(handled_.begin(), handled_.lower_bound(floor));
  suspect_.erase(suspect_.begin(), suspect_.lower_bound(floor));
  std::string after = floor;
  std::size_t fetched = 0;
  do {
    FLOTILLA_ASSIGN_OR_RETURN(const ListPage page, store_.list(prefix, after));
    for (const ObjectInfo& object : page.objects) {
      if (handled_.contains(object.key)) continue;
      const Result<Place> place = read_key(prefix, object.key);
      if (place.ok() && known(place->group)) continue;
      if (fetched == options_.groups_a_poll) return result;
      ++fetched;
      Result<ReceivedGroup> group = place.ok() ? fetch(object, *place, newest) : Result<ReceivedGroup>(place.status());
      if (group.ok()) {
        result.groups.push_back(*std::move(group));
      } else if (group.status().code() == StatusCode::kDataLoss && suspect_.insert(object.key).second) {
        continue;
      } else if (is_final(group.status())) {
        result.refused.push_back({place.ok() ? place->group.value() : object.key,
                                  place.ok() ? place->worker.value() : "", group.status().message()});
      } else {
        log_warning("learn", "{}: {}; will try again", object.key, group.status().to_string());
        continue;
      }
      handled_.insert(object.key);
    }
    after = page.next;
  } while (!after.empty());
  return result;
}

}  // namespace flotilla
