#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "store/object_store.h"
#include "sync/head.h"
#include "sync/hub_layout.h"
#include "sync/signing.h"

namespace flotilla {

// What to change in `head`; the rest stays as it is.
struct HeadChange {
  struct NewVersion {
    Version version;
    Sha256Digest manifest;
  };
  std::optional<NewVersion> version;
  std::optional<RunState> state;
  std::optional<std::int64_t> wanted;
};

// A learner's hold on `head`: every write is conditional on the bytes last seen, and a write whose answer was lost is
// found again by its bytes, which no other learner can produce. One thread.
class HeadWriter {
 public:
  // Raises the generation of the head that is there, so that an older learner's next write fails. failed_precondition
  // when the head is of another run, or another learner takes over at the same time; permission_denied when it is
  // signed by another key.
  static Result<HeadWriter> take_over(ObjectStore& store, const HubLayout& layout,
                                      std::shared_ptr<const SigningKey> key);

  // As last written or found; nullopt when the run has none yet.
  const std::optional<Head>& head() const { return head_; }
  Generation generation() const { return generation_; }

  // Finds out whether this learner still holds head, and what became of writes whose answer was lost.
  Status confirm();
  // The first head needs a version. After unavailable or deadline_exceeded the write may have happened or yet happen;
  // the next call finds out. failed_precondition: a newer learner has taken over, now and for good.
  Status write(const HeadChange& change);

 private:
  HeadWriter(ObjectStore& store, HubLayout layout, std::shared_ptr<const SigningKey> key);
  Status read_once();

  ObjectStore* store_;
  HubLayout layout_;
  std::shared_ptr<const SigningKey> key_;
  std::string writer_;
  Generation generation_{1};
  bool taking_over_ = true;  // a head of an older learner is no reason to stop yet
  Status lost_;              // why this learner must stop

  std::optional<Head> head_;
  std::string text_;  // of head_
  ETag etag_;
  std::vector<std::pair<std::string, Head>> uncertain_;  // writes without an answer since head_
};

}  // namespace flotilla
