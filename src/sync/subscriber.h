#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <stop_token>

#include "base/ids.h"
#include "base/status.h"
#include "model/grid.h"
#include "store/object_store.h"
#include "sync/head.h"
#include "sync/hub_layout.h"
#include "sync/signing.h"
#include "telemetry/event_sink.h"

namespace flotilla {

struct PulledVersion {
  Version version;
  Sha256Digest state_digest;
  std::shared_ptr<const GridState> state;
  std::uint64_t bytes = 0;  // fetched for it
  std::string path;         // "delta 4, delta 5" or "anchor 0, skip 10, delta 11"
};

// A version that was checked and is not there as a whole: `weights` makes its tensors out of what was fetched and,
// where deltas lead from there, of what is held; so it is of use until something else is held. A tensor that is no
// longer the one that was checked is not shown: data_loss.
struct NextVersion {
  Version version;
  Sha256Digest state_digest;
  GridSource weights;
  std::uint64_t bytes = 0;
  std::string path;
  std::chrono::nanoseconds fetching{0};
  std::chrono::nanoseconds checking{0};
};

struct SubscriberOptions {
  int threads = 1;        // of NextVersion::weights
  int check_threads = 0;  // of pull() and fetch(); 0: as many
  // Tensors of what is held, for who holds versions. Called within pull() and NextVersion::weights, by as many
  // threads.
  TensorReader held = nullptr;
  std::stop_token stop = {};  // ends a fetch and a check between two parts of them: cancelled
};

// A worker's side of weight sync. Follows `head`, which must be signed by the learner's key and never goes back, takes
// the cheapest path by bytes (skips and deltas from what it holds, or from an anchor), and checks size and
// SHA-256 of each object's chunks and the digests of state and history. Bad bytes are fetched once more, then the
// anchor is taken; a wrong digest after that is data_loss. Keeps the history and no weights: what it pulls is held, as
// the base of the next deltas, once the caller says that it has it. One caller.
class Subscriber {
 public:
  static std::unique_ptr<Subscriber> create(ObjectStore& store, HubLayout layout, ModelDescription description,
                                            PublicKey learner, EventSink& events, SubscriberOptions options = {});
  virtual ~Subscriber() = default;

  // Reads `head`, as soon as it is another than at the last time, or the time is over. not_found before the first
  // version. cancelled on a stop, which leaves everything as it is.
  virtual Result<Head> poll(const Watching& watching = {}) = 0;
  // The version that the last poll named, or none when it is held; fetches nothing when it was pulled last. One that
  // has been removed since (retention.h) gives way to what head names by now.
  virtual Result<std::optional<NextVersion>> pull() = 0;
  // SubscriberOptions::held gives the version that was pulled last from now on.
  virtual void hold() = 0;
  virtual std::optional<Version> held() const = 0;
  // Any version that the hub still has (for evaluation and verification). Does not change what is held.
  virtual Result<PulledVersion> fetch(Version version) = 0;
};

// Small files of a run by digest.
Result<Sha256Digest> put_artifact(ObjectStore& store, const HubLayout& layout, ByteSpan bytes);
Result<Bytes> get_artifact(ObjectStore& store, const HubLayout& layout, const Sha256Digest& digest);

}  // namespace flotilla
