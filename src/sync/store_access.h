#pragma once

#include <stop_token>
#include <string_view>

#include "base/status.h"
#include "store/object_store.h"
#include "sync/manifest.h"

namespace flotilla {

// How often a single operation is tried at once. A hub that stays away is the caller's to wait for: it knows how long,
// and what else to do meanwhile.
inline constexpr int kStoreAttempts = 3;

// Whether the same call may succeed next time; after it a write may or may not have happened.
bool may_pass(const Status& status);

// A whole object of at most `limit` bytes; a larger one is data_loss and is not read to its end.
Result<Bytes> read_small(ObjectStore& store, std::string_view key, std::size_t limit);

// An object that is known by its content, read in parts of kPartBytes. Bad chunks are fetched once more; bytes that are
// still wrong, or too many or too few, are data_loss. Adds what was fetched to `fetched`. `threads` check it. A stop is
// seen between two parts and between two chunks that are checked: cancelled.
inline constexpr std::uint64_t kPartBytes = 4 << 20;
Result<Bytes> fetch_described(ObjectStore& store, std::string_view key, const StoredObject& object,
                              std::uint64_t& fetched, int threads = 1, const std::stop_token& stop = {});

// Creates the object and reads it back. already_exists when the key holds other bytes, be they another's, torn or
// corrupt; any other error when it is not known what the key holds.
Status create_verified(ObjectStore& store, std::string_view key, ByteSpan bytes);

}  // namespace flotilla
