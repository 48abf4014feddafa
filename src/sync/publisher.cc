#include "sync/publisher.h"

#include <algorithm>
#include <charconv>

#include <fmt/format.h>

#include "base/log.h"
#include "base/thread_pool.h"
#include "sync/anchor.h"
#include "sync/delta.h"
#include "sync/head_writer.h"
#include "sync/manifest.h"
#include "sync/store_access.h"
#include "sync/version_parts.h"

namespace flotilla {
namespace {

constexpr const char* kLog = "sync";
// More numbers than crashes leave behind; a hub that refuses so many in a row has another fault.
constexpr int kNumbersTried = 100;

// The number after the highest one under which the hub holds anything, head's own included.
Result<std::uint64_t> next_free_number(ObjectStore& store, const HubLayout& layout, const std::optional<Head>& head) {
  // Without a head nobody has seen any version: begin at 0, where the same start of a run makes the same objects.
  if (!head) return 0;
  std::uint64_t next = head->version.value() + 1;
  const std::string folder = layout.weights_folder();
  std::string after = layout.weights(head->version) + "0";  // behind "<version>/..."
  Status status;
  for (int failures = 0; failures < kStoreAttempts;) {
    const auto page = store.list(folder, after);
    if (!page.ok()) {
      status = page.status();
      if (!may_pass(status)) return status;
      ++failures;
      continue;
    }
    for (const ObjectInfo& object : page->objects) {
      const std::string_view rest = std::string_view(object.key).substr(folder.size());
      std::uint64_t number = 0;
      const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), number);
      if (error == std::errc() && end != rest.data() + rest.size() && *end == '/') next = std::max(next, number + 1);
    }
    if (page->next.empty()) return next;
    after = page->next;
  }
  return status;
}

class HubPublisher final : public Publisher {
 public:
  HubPublisher(ObjectStore& store, HubLayout layout, ModelDescription description,
               std::shared_ptr<const SigningKey> key, PublisherOptions options, EventSink& events, const Clock& clock,
               HeadWriter head, std::uint64_t next_number)
      : store_(store),
        layout_(std::move(layout)),
        description_(std::move(description)),
        key_(std::move(key)),
        options_(options),
        events_(events),
        clock_(clock),
        head_(std::move(head)),
        number_(next_number) {}

  Result<PublishReport> publish(const GridState& state, std::uint64_t optimizer_step) override;
  Status update_head(RunState state, std::int64_t wanted) override;
  std::optional<Head> head() const override { return head_.head(); }

 private:
  // A version on the hub, not yet named by head.
  struct Prepared {
    PublishReport report;
    Sha256Digest manifest;
    DeltaHistory history;
  };
  struct Base {
    Version version;
    Sha256Digest digest;
    GridState state;
    DeltaHistory history;
  };

  Result<std::optional<PublishReport>> settle(const GridState& state, const Sha256Digest& digest);
  Result<Prepared> prepare(Version version, const GridState& state, const Sha256Digest& digest,
                           const std::optional<EncodedDelta>& delta, std::uint64_t optimizer_step);
  Result<Sha256Digest> create_manifest(const Manifest& manifest);
  void accept(Prepared prepared, const GridState& state);
  void skip_number() {
    ++number_;
    tried_.reset();
  }

  ObjectStore& store_;
  const HubLayout layout_;
  const ModelDescription description_;
  const std::shared_ptr<const SigningKey> key_;
  const PublisherOptions options_;
  EventSink& events_;
  const Clock& clock_;
  HeadWriter head_;

  std::uint64_t number_;               // of the next version
  std::optional<Sha256Digest> tried_;  // a state that may have been written under number_: no other one may be
  std::optional<Base> base_;           // the last version that this publisher published
  std::optional<Version> last_anchor_;
  std::optional<Prepared> unsettled_;        // head was to name it, but the answer was lost
  RunState run_state_ = RunState::kRunning;  // of the first head
  std::int64_t wanted_ = 0;
};

// Finds out whether an earlier publish, whose last answer was lost, happened after all. Its report when the same state
// is to be published now.
Result<std::optional<PublishReport>> HubPublisher::settle(const GridState& state, const Sha256Digest& digest) {
  FLOTILLA_RETURN_IF_ERROR(head_.confirm());
  if (!unsettled_) return std::optional<PublishReport>();
  const Prepared earlier = *std::exchange(unsettled_, std::nullopt);
  if (!head_.head() || head_.head()->manifest != earlier.manifest) return std::optional<PublishReport>();
  if (earlier.report.state == digest) {
    accept(earlier, state);
    return std::optional(earlier.report);
  }
  base_.reset();  // its state is gone: the next version begins with an anchor
  number_ = earlier.report.version.value() + 1;
  tried_.reset();
  return std::optional<PublishReport>();
}

// Writes the objects and the manifest of one number. already_exists when the number is taken.
Result<HubPublisher::Prepared> HubPublisher::prepare(Version version, const GridState& state,
                                                     const Sha256Digest& digest,
                                                     const std::optional<EncodedDelta>& delta,
                                                     std::uint64_t optimizer_step) {
  Prepared prepared;
  PublishReport& report = prepared.report;
  report.version = version;
  report.state = digest;
  Manifest manifest;
  manifest.run = layout_.prefix;
  manifest.version = version;
  manifest.generation = head_.generation();
  manifest.state = digest;
  manifest.optimizer_step = optimizer_step;
  manifest.time = clock_.wall();
  for (const TensorSpec& spec : description_.tensors) manifest.total += spec.size();
  report.total = manifest.total;
  prepared.history = delta ? delta->history : no_history(description_);
  manifest.history = history_digest(prepared.history);
  if (delta) {
    FLOTILLA_RETURN_IF_ERROR(create_verified(store_, layout_.delta(version), delta->bytes));
    manifest.delta = DeltaObject{describe_object(delta->bytes), kDeltaCodec, base_->version, base_->digest};
    manifest.changed = report.changed = delta->changed;
    report.delta_bytes = delta->bytes.size();
  }
  const bool anchor_due = !delta || !last_anchor_ || std::ssize(delta->bytes) > waiting_bytes_max(description_) ||
                          version.value() - last_anchor_->value() >= static_cast<std::uint64_t>(options_.anchor_every);
  if (anchor_due) {
    FLOTILLA_ASSIGN_OR_RETURN(const Bytes anchor,
                              encode_anchor(description_, state, prepared.history, {layout_.prefix, version, digest}));
    FLOTILLA_RETURN_IF_ERROR(create_verified(store_, layout_.anchor(version), anchor));
    manifest.anchor = describe_object(anchor);
    report.anchor_bytes = anchor.size();
  }
  FLOTILLA_ASSIGN_OR_RETURN(prepared.manifest, create_manifest(manifest));
  return prepared;
}

Result<Sha256Digest> HubPublisher::create_manifest(const Manifest& manifest) {
  const std::string text = manifest_to_json(manifest, *key_);
  const std::string key = layout_.manifest(manifest.version);
  const Status status = create_verified(store_, key, as_bytes(text));
  if (status.ok()) return sha256(text);
  if (status.code() != StatusCode::kAlreadyExists) return status;
  // A learner that died before it wrote head may have left the manifest of this very state.
  const auto found = read_small(store_, key, kManifestBytesMax);
  if (!found.ok()) return may_pass(found.status()) ? found.status() : status;
  auto earlier = manifest_from_json(as_text(*found), key_->public_key());
  if (!earlier.ok()) return status;
  earlier->generation = manifest.generation;
  earlier->time = manifest.time;
  return *earlier == manifest ? Result<Sha256Digest>(sha256(*found)) : status;
}

void HubPublisher::accept(Prepared prepared, const GridState& state) {
  const PublishReport& report = prepared.report;
  base_ = Base{report.version, report.state, state, std::move(prepared.history)};
  number_ = report.version.value() + 1;
  tried_.reset();
  if (report.anchor_bytes > 0) last_anchor_ = report.version;
}

Result<PublishReport> HubPublisher::publish(const GridState& state, std::uint64_t optimizer_step) {
  FLOTILLA_RETURN_IF_ERROR(check_grid(description_, state).with_context("publish"));
  const Sha256Digest digest = state_digest(description_, state, core_count());
  FLOTILLA_ASSIGN_OR_RETURN(const auto settled, settle(state, digest));
  if (settled) return *settled;

  std::optional<EncodedDelta> delta;
  if (base_) {
    FLOTILLA_ASSIGN_OR_RETURN(delta, encode_delta(description_, base_->state, base_->history, state, core_count()));
  }
  Status status;
  if (tried_ && *tried_ != digest) skip_number();
  for (int attempt = 0; attempt < kNumbersTried; ++attempt) {
    const Version version(number_);
    tried_ = digest;
    auto prepared = prepare(version, state, digest, delta, optimizer_step);
    if (prepared.status().code() == StatusCode::kAlreadyExists) {
      status = prepared.status();
      log_warning(kLog, "version number {} is skipped: {}", version.value(), status.message());
      events_.emit(
          {"hub.error", {{"operation", "put"}, {"key", layout_.weights(version)}, {"message", status.message()}}});
      skip_number();
      continue;
    }
    const std::string context = fmt::format("publish version {}", version.value());
    if (!prepared.ok()) return prepared.status().with_context(context);
    HeadChange change{HeadChange::NewVersion{version, prepared->manifest}, {}, {}};
    if (!head_.head()) {
      change.state = run_state_;
      change.wanted = wanted_;
    }
    status = head_.write(change);
    if (status.ok()) {
      accept(*prepared, state);
      return prepared->report;
    }
    if (may_pass(status)) unsettled_ = *prepared;
    return std::move(status).with_context(context);
  }
  return unavailable(
      fmt::format("publish: {} version numbers in a row are taken: {}", kNumbersTried, status.message()));
}

Status HubPublisher::update_head(RunState state, std::int64_t wanted) {
  if (wanted < 0) return invalid_argument(fmt::format("wanted {}: must not be negative", wanted));
  run_state_ = state;
  wanted_ = wanted;
  const std::optional<Head>& head = head_.head();
  if (!head || (head->state == state && head->wanted == wanted)) return ok_status();
  return head_.write({{}, state, wanted}).with_context("update head");
}

}  // namespace

Result<std::unique_ptr<Publisher>> Publisher::open(ObjectStore& store, HubLayout layout, ModelDescription description,
                                                   std::shared_ptr<const SigningKey> key, PublisherOptions options,
                                                   EventSink& events, const Clock& clock) {
  if (options.anchor_every < 1) {
    return invalid_argument(fmt::format("anchor_every is {}; expected 1 or more", options.anchor_every));
  }
  auto head = HeadWriter::take_over(store, layout, key).with_context("open run '" + layout.prefix + "' for publishing");
  if (!head.ok()) return head.status();
  FLOTILLA_ASSIGN_OR_RETURN(const std::uint64_t next, next_free_number(store, layout, head->head()));
  return std::unique_ptr<Publisher>(std::make_unique<HubPublisher>(store, std::move(layout), std::move(description),
                                                                   std::move(key), options, events, clock,
                                                                   *std::move(head), next));
}

}  // namespace flotilla
