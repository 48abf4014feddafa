#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "base/clock.h"
#include "base/ids.h"
#include "base/status.h"
#include "model/grid.h"
#include "store/object_store.h"
#include "sync/head.h"
#include "sync/hub_layout.h"
#include "sync/signing.h"
#include "telemetry/event_sink.h"

namespace flotilla {

struct PublisherOptions {
  std::int64_t anchor_every = 20;  // versions; version 0 is always an anchor
  // Versions from one that skips lead to and from to the next; each anchor is one. The history begins anew there.
  std::int64_t skip_every = 20;
};

struct PublishReport {
  Version version;
  Sha256Digest state;
  std::uint64_t delta_bytes = 0;   // 0: there is no delta
  std::uint64_t skip_bytes = 0;    // of all skips
  std::uint64_t anchor_bytes = 0;  // 0: there is no anchor
  std::int64_t changed = 0;        // integers changed against the base
  std::int64_t total = 0;
  double seconds_encode = 0;  // checks, digests, encoding
  double seconds_upload = 0;  // writing and reading back, `head` included
};

// The learner's side of weight sync. Order: payloads, read back size and digest, manifest, then `head` conditionally,
// so that a reader never sees a version that is not whole. A number that was once written is never used again: after a
// crash between payload and head, the next free number is taken. One thread publishes; another may meanwhile update
// `head`, which waits for no more than a write of it.
class Publisher {
 public:
  // Takes over the run's `head` with a generation above the one found there (or none). failed_precondition when a newer
  // generation takes it away at any later time: this learner must stop.
  static Result<std::unique_ptr<Publisher>> open(ObjectStore& store, HubLayout layout, ModelDescription description,
                                                 std::shared_ptr<const SigningKey> key, PublisherOptions options,
                                                 EventSink& events, const Clock& clock = system_clock());
  virtual ~Publisher() = default;

  // Publishes the state as the next version: a delta against the last version that this publisher published, skips
  // where they are due and cost less than what they pass over, and an anchor when one is due, when there is no such
  // version, or when the delta is larger than readers have room for (waiting_bytes_max()). On failure it may be called
  // again, with the same or another state; resource_exhausted: once there is room. After unavailable or
  // deadline_exceeded readers may see the version all the same; the next call finds out, and returns its report when
  // the state is the same. Waits for nothing: how long to wait for a hub is for the caller. Keeps the state, as the
  // base of the next delta.
  virtual Result<PublishReport> publish(std::shared_ptr<const GridState> state, std::uint64_t optimizer_step) = 0;
  Result<PublishReport> publish(const GridState& state, std::uint64_t optimizer_step) {
    return publish(std::make_shared<const GridState>(state), optimizer_step);
  }
  // Rewrites `head` with another state or wish; the version stays. Does nothing when both are as they are; before the
  // first version they are kept for the first head.
  virtual Status update_head(RunState state, std::int64_t wanted) = 0;
  // As last written or found; nullopt before the first version.
  virtual std::optional<Head> head() const = 0;
};

}  // namespace flotilla
