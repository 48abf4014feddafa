#include "sync/subscriber.h"

#include <algorithm>
#include <bit>
#include <iterator>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include <fmt/format.h>

#include "base/log.h"
#include "sync/anchor.h"
#include "sync/manifest.h"
#include "sync/store_access.h"
#include "sync/version_parts.h"

namespace flotilla {
namespace {

constexpr const char* kLog = "sync";

bool damaged(const Status& status) {
  return status.code() == StatusCode::kDataLoss || status.code() == StatusCode::kPermissionDenied;
}

// How to come to a version: from what is held or from an anchor, then the deltas in order.
struct Path {
  struct Step {
    Version version;  // that it leads to
    Version base;
    bool skip = false;
  };
  std::optional<Version> anchor;  // nullopt: from what is held
  std::vector<Step> steps;
  std::uint64_t bytes = 0;
  bool large = false;  // has a delta for which the memory plan has no room

  auto cost() const { return std::pair(large, bytes); }
  std::string text() const {
    std::string text = anchor ? fmt::format("anchor {}", anchor->value()) : "";
    for (const Step& step : steps) {
      text += fmt::format("{}{} {}", text.empty() ? "" : ", ", step.skip ? "skip" : "delta", step.version.value());
    }
    return text;
  }
};

// What the parts of a version make, as it was checked.
struct Checked {
  Sha256Digest state_digest;
  std::vector<std::uint64_t> checksums;  // of each tensor, for who makes it again
};

using SharedHistory = std::shared_ptr<const DeltaHistory>;

// A version that a path leads to, and what the next deltas are read with.
struct Found {
  NextVersion version;
  SharedHistory history;
};

std::uint64_t checksum_of(const GridTensor& tensor) {
  std::uint64_t sum = std::bit_cast<std::uint32_t>(tensor.vector_scale);
  sum = xxh3_64(as_bytes(std::span(tensor.vector_q)), sum);
  sum = xxh3_64(as_bytes(std::span(tensor.scales)), sum);
  return xxh3_64(as_bytes(std::span(tensor.q)), sum);
}

class HubSubscriber final : public Subscriber {
 public:
  HubSubscriber(ObjectStore& store, HubLayout layout, ModelDescription description, PublicKey learner,
                EventSink& events, SubscriberOptions options)
      : store_(store),
        layout_(std::move(layout)),
        description_(std::move(description)),
        learner_(learner),
        events_(events),
        options_(std::move(options)) {}

  Result<Head> poll(const Watching& watching) override;
  Result<std::optional<NextVersion>> pull() override;
  void hold() override;
  std::optional<Version> held() const override { return held_ ? std::optional(held_->version) : std::nullopt; }
  Result<PulledVersion> fetch(Version version) override;

 private:
  using Keys = std::set<std::string>;

  int check_threads() const { return options_.check_threads > 0 ? options_.check_threads : options_.threads; }
  Result<Head> read_head(const Watching& watching);
  Result<Manifest> read_manifest(Version version, const Sha256Digest* expected);
  Result<Manifest> manifest(Version version, const Sha256Digest* expected);
  std::string key_of(const Path::Step& step) const;
  const DeltaObject* longest_step(const Manifest& manifest, Version floor, const Keys& bad, Path::Step& step) const;
  Status walk(Version target, bool to_held, const Keys& bad, std::optional<Path>& best);
  Result<Path> cheapest_path(Version target, const Keys& bad);
  void condemn(const std::string& key, const Status& status, Keys& bad);
  void condemn_held(const Status& status, Keys& bad);
  Status unmakeable(const Path& path, std::size_t part, const Status& made, Keys& bad);
  Result<VersionParts> follow(const Path& path, Keys& bad, std::uint64_t& fetched);
  Result<Checked> check(const Path& path, const VersionParts& parts, Keys& bad, DeltaHistory& history,
                        GridState* state);
  GridSource source_of(VersionParts parts, Checked checked) const;
  Result<Found> find(Version target, const Sha256Digest* manifest_digest, GridState* state);

  ObjectStore& store_;
  const HubLayout layout_;
  const ModelDescription description_;
  const PublicKey learner_;
  EventSink& events_;
  const SubscriberOptions options_;
  const Sha256Digest no_history_ = history_digest(no_history(description_));

  std::optional<std::pair<ETag, Head>> last_read_;  // its signature was checked
  std::optional<Head> head_;                        // the newest one
  struct Held {
    Version version;
    Sha256Digest state_digest;
    SharedHistory history;
  };
  std::optional<Held> held_;
  std::optional<Found> next_;              // pulled and not held yet
  std::map<Version, Manifest> manifests_;  // a version has one manifest for all time
};

Result<Head> HubSubscriber::read_head(const Watching& watching) {
  const std::string key = layout_.head();
  FLOTILLA_ASSIGN_OR_RETURN(
      const std::optional<Object> read,
      store_.get_when_changed(key, last_read_ ? last_read_->first : ETag(), kHeadBytesMax + 1, watching));
  if (!read) {
    if (!last_read_) return unavailable(fmt::format("'{}': no answer in time", key));
    return last_read_->second;
  }
  if (read->bytes.size() > kHeadBytesMax) {
    return data_loss(fmt::format("'{}' has more than {} bytes", key, kHeadBytesMax));
  }
  FLOTILLA_ASSIGN_OR_RETURN(Head head, head_from_json(as_text(read->bytes), learner_));
  if (head.run != layout_.prefix) {
    return failed_precondition(fmt::format("'{}' belongs to the run '{}', not to '{}'", key, head.run, layout_.prefix));
  }
  last_read_.emplace(read->etag, head);
  return head;
}

Result<Head> HubSubscriber::poll(const Watching& watching) {
  auto found = read_head(watching);
  if (damaged(found.status())) found = read_head({});
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

std::string HubSubscriber::key_of(const Path::Step& step) const {
  return step.skip ? layout_.skip(step.version, step.base) : layout_.delta(step.version);
}

// The longest step down from a version that ends no lower than `floor`. No skip is larger than what it passes over.
const DeltaObject* HubSubscriber::longest_step(const Manifest& manifest, Version floor, const Keys& bad,
                                               Path::Step& step) const {
  const auto usable = [&](const DeltaObject& delta, bool skip) {
    step = {manifest.version, delta.base, skip};
    return delta.base >= floor && !bad.contains(key_of(step));
  };
  for (const DeltaObject& skip : manifest.skips) {
    if (usable(skip, true)) return &skip;
  }
  return manifest.delta && usable(*manifest.delta, false) ? &*manifest.delta : nullptr;
}

// Walks from the target down to the newest anchor, or, past anchors, to what is held; what it finds becomes `best`
// where that costs less. Returns why the walk broke off.
Status HubSubscriber::walk(Version target, bool to_held, const Keys& bad, std::optional<Path>& best) {
  Path walk;
  const auto consider = [&](Path path) {
    std::reverse(path.steps.begin(), path.steps.end());
    if (!best || path.cost() < best->cost()) best = std::move(path);
  };
  Version version = target;
  while (!best || walk.cost() < best->cost()) {
    FLOTILLA_ASSIGN_OR_RETURN(const Manifest found, manifest(version, nullptr));
    if (found.anchor && !bad.contains(layout_.anchor(version))) {
      Path path = walk;
      path.anchor = version;
      path.bytes += found.anchor->size;
      consider(std::move(path));
      if (!to_held) break;
    }
    const DeltaObject* delta =
        longest_step(found, to_held ? held_->version : Version(0), bad, walk.steps.emplace_back());
    if (delta == nullptr) break;
    walk.bytes += delta->object.size;
    // Codec 1 waits unpacked, and comes packed.
    const std::uint64_t room =
        static_cast<std::uint64_t>(waiting_bytes_max(description_)) / (delta->codec == 1 ? 2 : 1);
    walk.large = walk.large || delta->object.size > room;
    version = delta->base;
    if (!to_held || version > held_->version) continue;
    if (held_->state_digest == delta->base_state) consider(walk);
    break;
  }
  return ok_status();
}

// By bytes, among paths without a large delta, which an older learner may leave no way around. Objects whose key is in
// `bad` are not used; what is held is bad under the key "".
Result<Path> HubSubscriber::cheapest_path(Version target, const Keys& bad) {
  std::optional<Path> best;
  Status dead_end;
  for (const bool to_held : {true, false}) {
    if (to_held && (!held_ || bad.contains("") || held_->version >= target)) continue;
    const Status walked = walk(target, to_held, bad, best);
    // The rest of the chain may be gone or damaged; an anchor above it will do.
    if (may_pass(walked) || walked.code() == StatusCode::kFailedPrecondition) return walked;
    if (!walked.ok()) dead_end = walked;
  }
  if (best) return *best;
  if (!dead_end.ok()) return dead_end;
  return data_loss(fmt::format("no way leads to version {}: no anchor below it can be read", target.value()));
}

// An object that cannot be read or used is not tried again.
void HubSubscriber::condemn(const std::string& key, const Status& status, Keys& bad) {
  if (status.code() != StatusCode::kDataLoss && status.code() != StatusCode::kNotFound) return;
  bad.insert(key);
  log_warning(kLog, "{}", status.message());
  events_.emit({"hub.error", {{"operation", "get"}, {"key", key}, {"message", status.message()}}});
}

// What is held is not what it should be.
void HubSubscriber::condemn_held(const Status& status, Keys& bad) {
  if (status.code() != StatusCode::kDataLoss) return;
  bad.insert("");
  log_warning(kLog, "version {} as it is held is not used: {}", held_->version.value(), status.message());
}

Result<VersionParts> HubSubscriber::follow(const Path& path, Keys& bad, std::uint64_t& fetched) {
  VersionParts parts;
  const auto fetch = [&](const std::string& key, const StoredObject& object, const auto& read) -> Status {
    const auto most = static_cast<std::uint64_t>(object_bytes_max(description_));
    auto bytes = object.size > most
                     ? data_loss(fmt::format("'{}' has {} bytes; of this model at most {}", key, object.size, most))
                     : fetch_described(store_, key, object, fetched, check_threads(), options_.stop);
    Status status = bytes.ok() ? Status(read(*std::move(bytes))).with_context(key) : bytes.status();
    condemn(key, status, bad);
    return status;
  };
  if (path.anchor) {
    FLOTILLA_ASSIGN_OR_RETURN(const Manifest manifest, this->manifest(*path.anchor, nullptr));
    const AnchorLabel label{layout_.prefix, *path.anchor, manifest.state};
    FLOTILLA_RETURN_IF_ERROR(fetch(layout_.anchor(*path.anchor), *manifest.anchor, [&](Bytes bytes) -> Status {
      FLOTILLA_ASSIGN_OR_RETURN(OpenAnchor anchor, open_anchor(description_, std::move(bytes), label));
      parts.base = std::move(anchor.read);
      parts.replace = std::move(anchor.replace);
      parts.history = std::make_shared<const DeltaHistory>(std::move(anchor.history));
      return ok_status();
    }));
  } else {
    parts.base = options_.held;
    parts.history = held_->history;
  }
  ThreadPool pool(check_threads());
  for (const Path::Step& step : path.steps) {
    FLOTILLA_ASSIGN_OR_RETURN(const Manifest manifest, this->manifest(step.version, nullptr));
    const auto skip = std::ranges::find(manifest.skips, step.base, &DeltaObject::base);
    DeltaFrame delta;
    FLOTILLA_RETURN_IF_ERROR(
        fetch(key_of(step), step.skip ? skip->object : manifest.delta->object, [&](Bytes bytes) -> Status {
          FLOTILLA_ASSIGN_OR_RETURN(delta, read_delta_frame(description_, std::move(bytes)).with_context("delta"));
          return ok_status();
        }));
    delta.forgets = manifest.history == no_history_;
    std::size_t part = 0;
    const Status added = add_delta(description_, std::move(delta), pool, parts, part);
    if (!added.ok()) return unmakeable(path, part, added, bad);
  }
  return parts;
}

// Checks what the parts make, and keeps it where it is asked to.
Result<Checked> HubSubscriber::check(const Path& path, const VersionParts& parts, Keys& bad, DeltaHistory& history,
                                     GridState* state) {
  ThreadPool pool(check_threads());
  std::vector<Sha256Digest> leaves(description_.tensors.size());
  Checked checked{.state_digest = {}, .checksums = std::vector<std::uint64_t>(description_.tensors.size())};
  std::size_t part = 0;
  const Status made = make_tensors(
      description_, parts, pool,
      [&](TensorIndex first, std::span<GridTensor> tensors) -> Status {
        if (options_.stop.stop_requested()) return cancelled("asked to stop");
        std::vector<Status> checks(tensors.size());
        pool.run(std::ssize(tensors), [&](std::int64_t piece, int) {
          const auto i = static_cast<std::size_t>(piece), tensor = static_cast<std::size_t>(first) + i;
          checks[i] = check_grid(description_.tensors[tensor], tensors[i]);
          leaves[tensor] = tensor_digest(description_.tensors[tensor], tensors[i]);
          checked.checksums[tensor] = checksum_of(tensors[i]);
        });
        for (const Status& one : checks) FLOTILLA_RETURN_IF_ERROR(one);
        if (state != nullptr) std::ranges::move(tensors, std::back_inserter(state->tensors));
        return ok_status();
      },
      part, &history);
  if (!made.ok()) return unmakeable(path, part, made, bad);
  checked.state_digest = merkle_root(leaves);
  return checked;
}

// Every byte fetched was right, and yet a part of the path does not fit: 0 is what it begins with, 1 the first delta.
Status HubSubscriber::unmakeable(const Path& path, std::size_t part, const Status& made, Keys& bad) {
  if (!path.anchor) {
    Status status = made.with_context(path.text());
    condemn_held(status, bad);
    return status;
  }
  const std::string key = part > 0 ? key_of(path.steps[part - 1]) : layout_.anchor(*path.anchor);
  Status status = made.with_context(key);
  condemn(key, status, bad);
  return status;
}

// Makes the tensors again, which must be those that were checked.
GridSource HubSubscriber::source_of(VersionParts parts, Checked checked) const {
  struct Made {
    VersionParts parts;
    Checked checked;
  };
  return [description = description_, threads = options_.threads,
          made = std::make_shared<const Made>(Made{std::move(parts), std::move(checked)})](const TensorVisitor& visit) {
    ThreadPool pool(threads);
    std::size_t part = 0;
    return make_tensors(
        description, made->parts, pool,
        [&](TensorIndex first, std::span<GridTensor> tensors) -> Status {
          for (const GridTensor& tensor : tensors) {
            const auto i = static_cast<std::size_t>(first);
            if (checksum_of(tensor) != made->checked.checksums[i]) {
              return data_loss(fmt::format("{} is no longer what was checked", description.tensors[i].name));
            }
            visit(first++, tensor);
          }
          return ok_status();
        },
        part);
  };
}

// With `state` it has the whole of it after success.
Result<Found> HubSubscriber::find(Version target, const Sha256Digest* manifest_digest, GridState* state) {
  auto begin = std::chrono::steady_clock::now();
  FLOTILLA_ASSIGN_OR_RETURN(const Manifest wanted, manifest(target, manifest_digest));
  Keys bad;
  std::uint64_t fetched = 0;
  std::chrono::nanoseconds fetching{0}, checking{0};
  Status failure;
  // Each round ends, or takes an object out of the choice.
  while (true) {
    const auto path = cheapest_path(target, bad);
    if (!path.ok()) return failure.ok() ? path.status() : failure;
    const std::size_t bad_before = bad.size();
    if (state != nullptr) state->tensors.clear();
    auto parts = follow(*path, bad, fetched);
    const auto middle = std::chrono::steady_clock::now();
    DeltaHistory history;
    auto checked = parts.ok() ? check(*path, *parts, bad, history, state) : parts.status();
    const auto end = std::chrono::steady_clock::now();
    fetching += middle - begin;
    checking += end - middle;
    begin = end;
    if (!checked.ok()) {
      failure = checked.status();
      if (bad.size() == bad_before) return failure;
      continue;
    }
    const bool right_history = wanted.history ? history_digest(history) == *wanted.history
                                              : std::ranges::all_of(history, &ChangeHistory::empty);
    if (checked->state_digest == wanted.state && right_history) {
      const Sha256Digest digest = checked->state_digest;
      GridSource weights = source_of(*std::move(parts), *std::move(checked));
      return Found{NextVersion{target, digest, std::move(weights), fetched, path->text(), fetching, checking},
                   std::make_shared<const DeltaHistory>(std::move(history))};
    }
    failure =
        data_loss(checked->state_digest == wanted.state
                      ? fmt::format("version {} by {}: the history of changes is not the one that the manifest says",
                                    target.value(), path->text())
                      : fmt::format("version {} by {}: the state digest is {}; the manifest says {}", target.value(),
                                    path->text(), checked->state_digest.to_hex(), wanted.state.to_hex()));
    if (path->anchor) return failure;
    condemn_held(failure, bad);  // every byte fetched was right
  }
}

Result<std::optional<NextVersion>> HubSubscriber::pull() {
  if (!head_) FLOTILLA_RETURN_IF_ERROR(poll({}).status());
  while (true) {
    if (held_ && held_->version == head_->version) return std::optional<NextVersion>();
    if (next_ && next_->version.version == head_->version) return std::optional(next_->version);
    next_.reset();
    const Version target = head_->version;
    auto found = find(target, &head_->manifest, nullptr)
                     .with_context(fmt::format("pull version {} of run '{}'", target.value(), layout_.prefix));
    if (found.ok()) {
      next_ = *std::move(found);
      return std::optional(next_->version);
    }
    // It may have been removed since head was read: then head leads on.
    const StatusCode code = found.status().code();
    if (code != StatusCode::kNotFound && code != StatusCode::kDataLoss) return found.status();
    if (!poll({}).ok() || head_->version == target) return found.status();
    log_warning(kLog, "{}; head is at version {} by now", found.status().message(), head_->version.value());
  }
}

void HubSubscriber::hold() {
  FLOTILLA_CHECK(next_ && options_.held);
  held_ = {next_->version.version, next_->version.state_digest, std::move(next_->history)};
  next_.reset();
  manifests_.erase(manifests_.begin(), manifests_.lower_bound(held_->version));
}

Result<PulledVersion> HubSubscriber::fetch(Version version) {
  auto state = std::make_shared<GridState>();
  auto found = find(version, nullptr, state.get());
  if (found.status().code() == StatusCode::kNotFound) {
    return not_found(fmt::format(
        "run '{}': version {} is not on the hub: it was removed (docs/design/retention.md) or never published: {}",
        layout_.prefix, version.value(), found.status().message()));
  }
  if (!found.ok()) {
    return found.status().with_context(fmt::format("fetch version {} of run '{}'", version.value(), layout_.prefix));
  }
  NextVersion& next = found->version;
  return PulledVersion{version, next.state_digest, std::move(state), next.bytes, std::move(next.path)};
}

}  // namespace

std::unique_ptr<Subscriber> Subscriber::create(ObjectStore& store, HubLayout layout, ModelDescription description,
                                               PublicKey learner, EventSink& events, SubscriberOptions options) {
  return std::make_unique<HubSubscriber>(store, std::move(layout), std::move(description), learner, events,
                                         std::move(options));
}

}  // namespace flotilla
