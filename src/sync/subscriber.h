#pragma once

#include <memory>
#include <optional>

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
  std::string path;         // "delta 4, delta 5" or "anchor 0, delta 1"
};

// A worker's side of weight sync. Follows `head`, which must be signed by the learner's key and never goes back, takes
// the cheapest path by bytes (deltas from what it holds, or an anchor and the deltas after it), and checks size and
// SHA-256 of each object's chunks and the digest of the state, with `threads` threads for the hashes. Bad bytes are
// fetched once more, then the anchor is taken; a wrong state digest after that is data_loss. A failed pull leaves the
// held version as it was. One caller.
class Subscriber {
 public:
  static std::unique_ptr<Subscriber> create(ObjectStore& store, HubLayout layout, ModelDescription description,
                                            PublicKey learner, EventSink& events, int threads = 1);
  virtual ~Subscriber() = default;

  // Reads `head`. not_found before the first version.
  virtual Result<Head> poll() = 0;
  // The version that the last poll named; fetches nothing when it is held already.
  virtual Result<PulledVersion> pull() = 0;
  // Any version that the hub still has (for evaluation and verification). Does not change what is held.
  virtual Result<PulledVersion> fetch(Version version) = 0;
  virtual std::optional<PulledVersion> held() const = 0;
};

// Small files of a run by digest.
Result<Sha256Digest> put_artifact(ObjectStore& store, const HubLayout& layout, ByteSpan bytes);
Result<Bytes> get_artifact(ObjectStore& store, const HubLayout& layout, const Sha256Digest& digest);

}  // namespace flotilla
