#include "sync/publisher.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <mutex>

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

double seconds(std::chrono::nanoseconds time) { return std::chrono::duration<double>(time).count(); }

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
        generation_(head_.generation()),
        number_(next_number) {}

  Result<PublishReport> publish(std::shared_ptr<const GridState> state, std::uint64_t optimizer_step) override;
  Status update_head(RunState state, std::int64_t wanted) override;
  std::optional<Head> head() const override {
    const std::scoped_lock lock(head_mutex_);
    return head_.head();
  }

 private:
  using SharedState = std::shared_ptr<const GridState>;

  // A version on the hub, not yet named by head.
  struct Prepared {
    PublishReport report;
    Sha256Digest manifest;
    SharedState state;
    DeltaHistory history;
    bool stop = false;                  // skips lead to it
    std::uint64_t stop_skip_bytes = 0;  // of the one from the stop before; 0: there is none
  };
  struct Base {
    Version version;
    Sha256Digest digest;
    SharedState state;
    DeltaHistory history;
  };
  // Where skips begin and end. Its history is empty.
  struct Stop {
    Version version;
    Sha256Digest digest;
    SharedState state;
    std::uint64_t way_bytes = 0;  // of the cheapest way from here to the base
  };

  Result<std::optional<PublishReport>> settle(const Sha256Digest& digest);
  Result<Prepared> prepare(Version version, const SharedState& state, const Sha256Digest& digest,
                           const std::optional<EncodedDelta>& delta, std::uint64_t optimizer_step);
  // Writes the skip from a stop if it is smaller than the cheapest way from there; its bytes or 0.
  Result<std::uint64_t> add_skip(const Stop& from, std::uint64_t way_bytes, const Prepared& prepared,
                                 Manifest& manifest);
  Result<Sha256Digest> create_manifest(const Manifest& manifest);
  Status name_in_head(const Prepared& prepared);
  void accept(Prepared prepared);
  // What the work takes counts as upload; with its result.
  template <typename Work>
  auto upload(const Work& work) {
    const std::chrono::nanoseconds began = clock_.monotonic();
    auto result = work();
    uploaded_ += clock_.monotonic() - began;
    return result;
  }
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

  mutable std::mutex head_mutex_;  // guards the three below
  HeadWriter head_;
  RunState run_state_ = RunState::kRunning;  // of the first head
  std::int64_t wanted_ = 0;

  // Of the thread that publishes.
  const Generation generation_;
  std::uint64_t number_;               // of the next version
  std::optional<Sha256Digest> tried_;  // a state that may have been written under number_: no other one may be
  std::optional<Base> base_;           // the last version that this publisher published
  std::optional<Stop> last_anchor_;
  std::optional<Stop> last_stop_;         // the same, or a later one
  std::optional<Prepared> unsettled_;     // head was to name it, but the answer was lost
  std::chrono::nanoseconds uploaded_{0};  // by this call
};

// Finds out whether an earlier publish, whose last answer was lost, happened after all. Its report when the same state
// is to be published now.
Result<std::optional<PublishReport>> HubPublisher::settle(const Sha256Digest& digest) {
  std::optional<Head> head;
  {
    const std::scoped_lock lock(head_mutex_);
    FLOTILLA_RETURN_IF_ERROR(head_.confirm());
    head = head_.head();
  }
  if (!unsettled_) return std::optional<PublishReport>();
  const Prepared earlier = *std::exchange(unsettled_, std::nullopt);
  if (!head || head->manifest != earlier.manifest) return std::optional<PublishReport>();
  accept(earlier);
  return earlier.report.state == digest ? std::optional(earlier.report) : std::nullopt;
}

// Writes the objects and the manifest of one number. already_exists when the number is taken.
Result<HubPublisher::Prepared> HubPublisher::prepare(Version version, const SharedState& state,
                                                     const Sha256Digest& digest,
                                                     const std::optional<EncodedDelta>& delta,
                                                     std::uint64_t optimizer_step) {
  const auto due = [&](const std::optional<Stop>& last, std::int64_t every) {
    return !delta || !last || version.value() - last->version.value() >= static_cast<std::uint64_t>(every);
  };
  const bool large = delta && std::ssize(delta->bytes) > waiting_bytes_max(description_);
  const bool anchor_due = large || due(last_anchor_, options_.anchor_every);
  Prepared prepared;
  prepared.state = state;
  prepared.stop = anchor_due || due(last_stop_, options_.skip_every);
  PublishReport& report = prepared.report;
  report.version = version;
  report.state = digest;
  Manifest manifest;
  manifest.run = layout_.prefix;
  manifest.version = version;
  manifest.generation = generation_;
  manifest.state = digest;
  manifest.optimizer_step = optimizer_step;
  manifest.time = clock_.wall();
  for (const TensorSpec& spec : description_.tensors) manifest.total += spec.size();
  report.total = manifest.total;
  prepared.history = prepared.stop ? no_history(description_) : delta->history;
  manifest.history = history_digest(prepared.history);
  if (delta) {
    FLOTILLA_RETURN_IF_ERROR(upload([&] { return create_verified(store_, layout_.delta(version), delta->bytes); }));
    manifest.delta = DeltaObject{describe_object(delta->bytes), kDeltaCodec, base_->version, base_->digest};
    manifest.changed = report.changed = delta->changed;
    report.delta_bytes = delta->bytes.size();
    const std::uint64_t stop_way = prepared.stop ? last_stop_->way_bytes + report.delta_bytes : 0;
    if (prepared.stop) {
      FLOTILLA_ASSIGN_OR_RETURN(prepared.stop_skip_bytes, add_skip(*last_stop_, stop_way, prepared, manifest));
    }
    if (anchor_due && last_anchor_->version != last_stop_->version) {
      const std::uint64_t saved = prepared.stop_skip_bytes > 0 ? stop_way - prepared.stop_skip_bytes : 0;
      const std::uint64_t way = last_anchor_->way_bytes + report.delta_bytes - saved;
      FLOTILLA_RETURN_IF_ERROR(add_skip(*last_anchor_, way, prepared, manifest).status());
    }
    for (const DeltaObject& skip : manifest.skips) report.skip_bytes += skip.object.size;
  }
  if (anchor_due) {
    FLOTILLA_ASSIGN_OR_RETURN(const Bytes anchor,
                              encode_anchor(description_, *state, prepared.history, {layout_.prefix, version, digest}));
    FLOTILLA_RETURN_IF_ERROR(upload([&] { return create_verified(store_, layout_.anchor(version), anchor); }));
    manifest.anchor = describe_object(anchor);
    report.anchor_bytes = anchor.size();
  }
  FLOTILLA_ASSIGN_OR_RETURN(prepared.manifest, upload([&] { return create_manifest(manifest); }));
  return prepared;
}

Result<std::uint64_t> HubPublisher::add_skip(const Stop& from, std::uint64_t way_bytes, const Prepared& prepared,
                                             Manifest& manifest) {
  if (from.version == manifest.delta->base) return 0;
  FLOTILLA_ASSIGN_OR_RETURN(const EncodedDelta skip, encode_delta(description_, *from.state, no_history(description_),
                                                                  *prepared.state, core_count()));
  if (skip.bytes.size() >= way_bytes || std::ssize(skip.bytes) > waiting_bytes_max(description_)) return 0;
  FLOTILLA_RETURN_IF_ERROR(
      upload([&] { return create_verified(store_, layout_.skip(manifest.version, from.version), skip.bytes); }));
  // By rising base.
  manifest.skips.insert(manifest.skips.begin(), {describe_object(skip.bytes), kDeltaCodec, from.version, from.digest});
  return skip.bytes.size();
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

Status HubPublisher::name_in_head(const Prepared& prepared) {
  HeadChange change{HeadChange::NewVersion{prepared.report.version, prepared.manifest}, {}, {}};
  const std::scoped_lock lock(head_mutex_);
  if (!head_.head()) {
    change.state = run_state_;
    change.wanted = wanted_;
  }
  return head_.write(change);
}

void HubPublisher::accept(Prepared prepared) {
  const PublishReport& report = prepared.report;
  if (last_stop_) {
    last_anchor_->way_bytes += report.delta_bytes;
    last_stop_->way_bytes += report.delta_bytes;
    if (prepared.stop_skip_bytes > 0) last_anchor_->way_bytes -= last_stop_->way_bytes - prepared.stop_skip_bytes;
  }
  if (prepared.stop) last_stop_ = Stop{report.version, report.state, prepared.state, 0};
  if (report.anchor_bytes > 0) last_anchor_ = last_stop_;
  base_ = Base{report.version, report.state, std::move(prepared.state), std::move(prepared.history)};
  number_ = report.version.value() + 1;
  tried_.reset();
}

Result<PublishReport> HubPublisher::publish(SharedState state, std::uint64_t optimizer_step) {
  const std::chrono::nanoseconds began = clock_.monotonic();
  uploaded_ = std::chrono::nanoseconds(0);
  FLOTILLA_RETURN_IF_ERROR(check_grid(description_, *state).with_context("publish"));
  const Sha256Digest digest = state_digest(description_, *state, core_count());
  FLOTILLA_ASSIGN_OR_RETURN(const auto settled, upload([&] { return settle(digest); }));
  if (settled) return *settled;

  std::optional<EncodedDelta> delta;
  if (base_) {
    FLOTILLA_ASSIGN_OR_RETURN(delta, encode_delta(description_, *base_->state, base_->history, *state, core_count()));
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
    status = upload([&] { return name_in_head(*prepared); });
    prepared->report.seconds_upload = seconds(uploaded_);
    prepared->report.seconds_encode = seconds(clock_.monotonic() - began - uploaded_);
    if (status.ok()) {
      accept(*prepared);
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
  const std::scoped_lock lock(head_mutex_);
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
  if (options.anchor_every < 1 || options.skip_every < 1) {
    return invalid_argument(
        fmt::format("anchor_every is {}, skip_every {}; expected 1 or more", options.anchor_every, options.skip_every));
  }
  auto head = HeadWriter::take_over(store, layout, key).with_context("open run '" + layout.prefix + "' for publishing");
  if (!head.ok()) return head.status();
  FLOTILLA_ASSIGN_OR_RETURN(const std::uint64_t next, next_free_number(store, layout, head->head()));
  return std::unique_ptr<Publisher>(std::make_unique<HubPublisher>(store, std::move(layout), std::move(description),
                                                                   std::move(key), options, events, clock,
                                                                   *std::move(head), next));
}

}  // namespace flotilla
