#include "sync/store_access.h"

#include <algorithm>

#include <fmt/format.h>

namespace flotilla {

bool may_pass(const Status& status) {
  return status.code() == StatusCode::kUnavailable || status.code() == StatusCode::kDeadlineExceeded;
}

Result<Bytes> read_small(ObjectStore& store, std::string_view key, std::size_t limit) {
  FLOTILLA_ASSIGN_OR_RETURN(Bytes bytes, store.get_range(key, 0, limit + 1));
  if (bytes.size() > limit) return data_loss(fmt::format("'{}' has more than {} bytes", key, limit));
  return bytes;
}

namespace {

Status asked_to_stop(std::string_view key) { return cancelled(fmt::format("'{}': asked to stop", key)); }

// So much is reserved on a manifest's word; the rest once so much has come.
constexpr std::uint64_t kReservedMax = 32 << 20;

// None behind the end of an object that has become shorter since the part before.
Result<Bytes> read_part(ObjectStore& store, std::string_view key, std::uint64_t offset, std::uint64_t size,
                        const std::stop_token& stop) {
  auto part = store.get_range_unless_stopped(key, offset, size, stop);
  if (offset > 0 && part.status().code() == StatusCode::kInvalidArgument) return Bytes();
  return part;
}

// As much of the object as there is, and one byte more than there should be, to see a longer one.
Result<Bytes> read_parts(ObjectStore& store, std::string_view key, std::uint64_t size, const std::stop_token& stop) {
  Bytes bytes;
  while (bytes.size() <= size) {
    if (stop.stop_requested()) return asked_to_stop(key);
    const std::uint64_t wanted = std::min(kPartBytes, size + 1 - bytes.size());
    FLOTILLA_ASSIGN_OR_RETURN(const Bytes part, read_part(store, key, bytes.size(), wanted, stop));
    // Never more than there will be: the largest objects are as large as the weights.
    if (bytes.size() + part.size() > bytes.capacity()) {
      bytes.reserve(bytes.size() < kReservedMax ? std::min(size + 1, kReservedMax) : size + 1);
    }
    bytes.insert(bytes.end(), part.begin(), part.end());
    if (part.size() < wanted) break;
  }
  return bytes;
}

}  // namespace

Result<Bytes> fetch_described(ObjectStore& store, std::string_view key, const StoredObject& object,
                              std::uint64_t& fetched, int threads, const std::stop_token& stop) {
  Bytes bytes;
  for (int attempt = 0; attempt < 2 && bytes.size() != object.size; ++attempt) {
    bytes = Bytes();  // not two at a time
    FLOTILLA_ASSIGN_OR_RETURN(bytes, read_parts(store, key, object.size, stop));
    fetched += bytes.size();
  }
  if (bytes.size() != object.size) {
    return data_loss(fmt::format("'{}' has {} bytes; expected {}", key, bytes.size(), object.size));
  }
  for (const std::size_t i : wrong_chunks(object, bytes, threads, stop)) {
    if (stop.stop_requested()) return asked_to_stop(key);
    const std::uint64_t begin = i * kChunkBytes;
    const std::uint64_t size = std::min(kChunkBytes, object.size - begin);
    FLOTILLA_ASSIGN_OR_RETURN(const Bytes again, read_part(store, key, begin, size, stop));
    fetched += again.size();
    if (again.size() != size || sha256(again) != object.chunks[i]) {
      return data_loss(fmt::format("'{}': bytes {} to {} do not match their SHA-256", key, begin, begin + size));
    }
    std::ranges::copy(again, bytes.begin() + static_cast<std::ptrdiff_t>(begin));
  }
  return bytes;
}

Status create_verified(ObjectStore& store, std::string_view key, ByteSpan bytes) {
  Status status;
  for (int attempt = 0; attempt < kStoreAttempts; ++attempt) {
    status = store.put_if_absent(key, bytes).status();
    if (!status.ok() && status.code() != StatusCode::kAlreadyExists && !may_pass(status)) return status;
    // Twice: a read that was corrupt on its way must not condemn a good object.
    for (int reading = 0; reading < 2; ++reading) {
      const auto found = store.get_range(key, 0, bytes.size() + 1);
      if (found.ok() && std::ranges::equal(*found, bytes)) return ok_status();
      status = found.ok() ? already_exists(fmt::format("'{}' holds other bytes", key)) : found.status();
    }
    if (status.code() == StatusCode::kAlreadyExists) return status;
    if (status.code() != StatusCode::kNotFound && !may_pass(status)) return status;
  }
  return status.code() == StatusCode::kNotFound ? unavailable(fmt::format("'{}' was written but cannot be read", key))
                                                : status;
}

}  // namespace flotilla
