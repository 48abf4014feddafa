#include "sync/subscriber.h"

#include <algorithm>
#include <map>
#include <set>
#include <vector>

#include <fmt/format.h>

#include "base/log.h"
#include "sync/anchor.h"
#include "sync/delta.h"
#include "sync/manifest.h"
#include "sync/store_access.h"

namespace flotilla {
namespace {

constexpr const char* kLog = "sync";

bool damaged(const Status& status) {
  return status.code() == StatusCode::kDataLoss || status.code() == StatusCode::kPermissionDenied;
}

// How to come to a version: from what is held or from an anchor, then the deltas in order.
struct Path {
  std::optional<Version> anchor;  // nullopt: from what is held
  std::vector<Version> deltas;
  std::uint64_t bytes = 0;

  std::string text() const {
    std::string text = anchor ? fmt::format("anchor {}", anchor->value()) : "";
    for (const Version version : deltas) text += fmt::format("{}delta {}", text.empty() ? "" : ", ", version.value());
    return text;
  }
};

class HubSubscriber final : public Subscriber {
 public:
  HubSubscriber(ObjectStore& store, HubLayout layout, ModelDescription description, PublicKey learner,
                EventSink& events, int threads)
      : store_(store),
        layout_(std::move(layout)),
        description_(std::move(description)),
        learner_(learner),
        events_(events),
        threads_(threads) {}

  Result<Head> poll() override;
  Result<PulledVersion> pull() override;
  Result<PulledVersion> fetch(Version version) override;
  std::optional<PulledVersion> held() const override { return held_; }

 private:
  using Keys = std::set<std::string>;

  Result<Head> read_head();
  Result<Manifest> read_manifest(Version version, const Sha256Digest* expected);
  Result<Manifest> manifest(Version version, const Sha256Digest* expected);
  Result<Path> cheapest_path(Version target, const Keys& bad);
  Result<GridState> follow(const Path& path, Keys& bad, std::uint64_t& fetched);
  Result<PulledVersion> load(Version target, const Sha256Digest* manifest_digest);

  ObjectStore& store_;
  const HubLayout layout_;
  const ModelDescription description_;
  const PublicKey learner_;
  EventSink& events_;
  const int threads_;

  std::optional<std::pair<Bytes, Head>> last_read_;  // bytes whose signature was checked
  std::optional<Head> head_;                         // the newest one
  std::optional<PulledVersion> held_;
  std::map<Version, Manifest> manifests_;  // a version has one manifest for all time
};

Result<Head> HubSubscriber::read_head() {
  FLOTILLA_ASSIGN_OR_RETURN(Bytes bytes, read_small(store_, layout_.head(), kHeadBytesMax));
  if (last_read_ && last_read_->first == bytes) return last_read_->second;  // most polls find nothing new
  FLOTILLA_ASSIGN_OR_RETURN(Head head, head_from_json(as_text(bytes), learner_));
  if (head.run != layout_.prefix) {
    return failed_precondition(
        fmt::format("'{}' belongs to the run '{}', not to '{}'", layout_.head(), head.run, layout_.prefix));
  }
  last_read_.emplace(std::move(bytes), head);
  return head;
}

Result<Head> HubSubscriber::poll() {
  auto found = read_head();
  if (damaged(found.status())) found = read_head();
  if (head_ && found.status().code() == StatusCode::kNotFound) {
    return unavailable(fmt::format("'{}' has vanished from the hub", layout_.head()));
  }
  if (!found.ok()) return std::move(found).with_context(fmt::format("poll run '{}'", layout_.prefix));
  if (!head_ || *found == *head_) return *(head_ = *found);
  if (found->sequence < head_->sequence) {
    events_.emit({"hub.error",
                  {{"operation", "get"},
                   {"key", layout_.head()},
                   {"message", fmt::format("head {} is older than head {}, which was seen before", found->sequence,
                                           head_->sequence)}}});
    return *head_;
  }
  // One chain of conditional writes only ever rises. Anything else is two learners on a hub without conditional writes.
  const bool forked = found->sequence == head_->sequence || found->generation < head_->generation ||
                      (found->generation == head_->generation && found->writer != head_->writer) ||
                      found->version < head_->version ||
                      (found->version == head_->version && found->manifest != head_->manifest);
  if (forked) {
    return failed_precondition(
        fmt::format("two learners write the head of run '{}': version {} of generation {} ({}) against version {} of "
                    "generation {} ({})",
                    layout_.prefix, found->version.value(), found->generation.value(), found->writer,
                    head_->version.value(), head_->generation.value(), head_->writer));
  }
  head_ = *found;
  return *head_;
}

Result<Manifest> HubSubscriber::read_manifest(Version version, const Sha256Digest* expected) {
  const std::string key = layout_.manifest(version);
  FLOTILLA_ASSIGN_OR_RETURN(const Bytes bytes, read_small(store_, key, kManifestBytesMax));
  if (expected != nullptr && sha256(bytes) != *expected) {
    return data_loss(
        fmt::format("'{}' has the SHA-256 {}; head says {}", key, sha256(bytes).to_hex(), expected->to_hex()));
  }
  FLOTILLA_ASSIGN_OR_RETURN(Manifest manifest, manifest_from_json(as_text(bytes), learner_).with_context(key));
  if (manifest.run != layout_.prefix || manifest.version != version) {
    return data_loss(
        fmt::format("'{}' is the manifest of version {} of run '{}'", key, manifest.version.value(), manifest.run));
  }
  return manifest;
}

Result<Manifest> HubSubscriber::manifest(Version version, const Sha256Digest* expected) {
  if (const auto known = manifests_.find(version); known != manifests_.end()) return known->second;
  auto manifest = read_manifest(version, expected);
  if (damaged(manifest.status())) manifest = read_manifest(version, expected);
  if (manifest.ok()) manifests_.emplace(version, *manifest);
  return manifest;
}

// Walks from the target down its bases. Every stop with an anchor, or at what is held, ends a path; the cheapest one
// wins. Objects whose key is in `bad` are not used; what is held is bad under the key "".
Result<Path> HubSubscriber::cheapest_path(Version target, const Keys& bad) {
  std::optional<Path> best;
  const auto consider = [&](Path path) {
    std::reverse(path.deltas.begin(), path.deltas.end());
    if (!best || path.bytes < best->bytes) best = std::move(path);
  };
  const bool use_held = held_ && !bad.contains("");
  Path walk;
  Version version = target;
  Status dead_end;
  while (!best || walk.bytes < best->bytes) {
    auto found = manifest(version, nullptr);
    if (!found.ok()) {
      // The rest of the chain is gone or damaged; an anchor above it will do.
      dead_end = found.status();
      if (may_pass(dead_end) || dead_end.code() == StatusCode::kFailedPrecondition) return dead_end;
      break;
    }
    if (found->anchor && !bad.contains(layout_.anchor(version))) {
      Path path = walk;
      path.anchor = version;
      path.bytes += found->anchor->size;
      consider(std::move(path));
      // Below it only what is held can be nearer.
      if (!use_held || held_->version >= version) break;
    }
    if (!found->delta || bad.contains(layout_.delta(version))) break;
    walk.deltas.push_back(version);
    walk.bytes += found->delta->object.size;
    version = found->delta->base;
    if (use_held && held_->version == version && held_->state_digest == found->delta->base_state) {
      consider(walk);
      break;
    }
  }
  if (best) return *best;
  if (!dead_end.ok()) return dead_end;
  return data_loss(fmt::format("no way leads to version {}: no anchor below it can be read", target.value()));
}

// Fetches and applies. An object that cannot be read or used is added to `bad`.
Result<GridState> HubSubscriber::follow(const Path& path, Keys& bad, std::uint64_t& fetched) {
  const auto condemn = [&](const std::string& key, Status status) {
    if (status.code() == StatusCode::kDataLoss || status.code() == StatusCode::kNotFound) {
      bad.insert(key);
      log_warning(kLog, "{}", status.message());
      events_.emit({"hub.error", {{"operation", "get"}, {"key", key}, {"message", status.message()}}});
    }
    return status;
  };
  GridState state;
  if (path.anchor) {
    const std::string key = layout_.anchor(*path.anchor);
    FLOTILLA_ASSIGN_OR_RETURN(const Manifest manifest, this->manifest(*path.anchor, nullptr));
    const auto bytes = fetch_described(store_, key, *manifest.anchor, fetched, threads_);
    if (!bytes.ok()) return condemn(key, bytes.status());
    auto decoded = decode_anchor(description_, *bytes, {layout_.prefix, *path.anchor, manifest.state});
    if (!decoded.ok()) return condemn(key, decoded.status().with_context(key));
    state = *std::move(decoded);
  } else {
    state = *held_->state;
  }
  for (const Version version : path.deltas) {
    const std::string key = layout_.delta(version);
    FLOTILLA_ASSIGN_OR_RETURN(const Manifest manifest, this->manifest(version, nullptr));
    const auto bytes = fetch_described(store_, key, manifest.delta->object, fetched, threads_);
    if (!bytes.ok()) return condemn(key, bytes.status());
    auto next = apply_delta(description_, std::move(state), *bytes);
    if (!next.ok()) return condemn(key, next.status().with_context(key));
    state = *std::move(next);
  }
  return state;
}

Result<PulledVersion> HubSubscriber::load(Version target, const Sha256Digest* manifest_digest) {
  FLOTILLA_ASSIGN_OR_RETURN(const Manifest wanted, manifest(target, manifest_digest));
  if (held_ && held_->version == target && held_->state_digest == wanted.state) return *held_;
  Keys bad;
  std::uint64_t fetched = 0;
  Status failure;
  // Each round ends, or takes an object out of the choice.
  while (true) {
    const auto path = cheapest_path(target, bad);
    if (!path.ok()) return failure.ok() ? path.status() : failure;
    const std::size_t bad_before = bad.size();
    auto state = follow(*path, bad, fetched);
    if (!state.ok()) {
      failure = state.status();
      if (bad.size() == bad_before) return failure;
      continue;
    }
    const Sha256Digest digest = state_digest(description_, *state, threads_);
    if (digest == wanted.state) {
      return PulledVersion{target, digest, std::make_shared<const GridState>(*std::move(state)), fetched, path->text()};
    }
    failure = data_loss(fmt::format("version {} by {}: the state digest is {}; the manifest says {}", target.value(),
                                    path->text(), digest.to_hex(), wanted.state.to_hex()));
    if (path->anchor) return failure;
    bad.insert("");  // every byte fetched was right: what is held is not what it should be
  }
}

Result<PulledVersion> HubSubscriber::pull() {
  if (!head_) FLOTILLA_RETURN_IF_ERROR(poll().status());
  if (held_ && held_->version == head_->version) return *held_;
  auto pulled = load(head_->version, &head_->manifest)
                    .with_context(fmt::format("pull version {} of run '{}'", head_->version.value(), layout_.prefix));
  if (!pulled.ok()) return pulled;
  held_ = *pulled;
  manifests_.erase(manifests_.begin(), manifests_.lower_bound(held_->version));
  return pulled;
}

Result<PulledVersion> HubSubscriber::fetch(Version version) {
  return load(version, nullptr)
      .with_context(fmt::format("fetch version {} of run '{}'", version.value(), layout_.prefix));
}

}  // namespace

std::unique_ptr<Subscriber> Subscriber::create(ObjectStore& store, HubLayout layout, ModelDescription description,
                                               PublicKey learner, EventSink& events, int threads) {
  return std::make_unique<HubSubscriber>(store, std::move(layout), std::move(description), learner, events, threads);
}

}  // namespace flotilla
