#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "base/hashing.h"
#include "base/ids.h"
#include "base/status.h"
#include "sync/signing.h"

namespace flotilla {

inline constexpr int kManifestFormat = 3;  // the newest that is read, and the one that is written
inline constexpr std::uint64_t kChunkBytes = 1 << 20;
inline constexpr std::size_t kManifestBytesMax = 16 << 20;

// An object by its content. chunks[i] is the SHA-256 of bytes [i * kChunkBytes, (i + 1) * kChunkBytes), the last one
// shorter: who holds a part can fetch and check a part.
struct StoredObject {
  std::uint64_t size = 0;  // > 0
  Sha256Digest sha256;
  std::vector<Sha256Digest> chunks;

  bool operator==(const StoredObject&) const = default;
};
StoredObject describe_object(ByteSpan bytes);
// Chunks that are not as described, of bytes of the described size; after a stop, also those that were not looked at.
// `threads` of them are hashed at a time: of an anchor this is much of the time between its arrival and its first
// token.
std::vector<std::size_t> wrong_chunks(const StoredObject& object, ByteSpan bytes, int threads = 1,
                                      const std::stop_token& stop = {});

inline constexpr std::size_t kSkipsMax = 16;  // of one version

// What changes lead from another version to this one.
struct DeltaObject {
  StoredObject object;
  int codec = 0;
  Version base;
  Sha256Digest base_state;

  bool operator==(const DeltaObject&) const = default;
};

// What a version is: trust in its bytes, wherever they come from, begins here. At least one of delta and anchor is
// there.
struct Manifest {
  int format = kManifestFormat;
  std::string run;  // "<owner>/<run>"
  Version version;
  Generation generation;
  Sha256Digest state;  // state_digest()
  // history_digest(): of what the codec of deltas remembers. Absent in format 1, before there was one: nothing.
  std::optional<Sha256Digest> history;
  std::optional<DeltaObject> delta;
  std::vector<DeltaObject> skips;  // from older versions than the delta's base, by rising base; none before format 3
  std::optional<StoredObject> anchor;
  std::int64_t changed = 0;  // integers that differ from the delta's base; 0 without a delta
  std::int64_t total = 0;    // integers in all
  std::uint64_t optimizer_step = 0;
  std::chrono::milliseconds time{0};  // wall clock of the learner, since 1970

  bool operator==(const Manifest&) const = default;
};

std::string manifest_to_json(const Manifest& manifest, const SigningKey& key);
// permission_denied when another key signed it; failed_precondition when its format or codec is newer than this
// program; data_loss for anything else.
Result<Manifest> manifest_from_json(std::string_view text, const PublicKey& learner);

}  // namespace flotilla
