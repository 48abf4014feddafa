#include "store/quota_store.h"

#include <fmt/format.h>

#include "base/log.h"

namespace flotilla {
namespace {

constexpr std::uint64_t kReplacements = 1 << 20;  // room for head and statuses
constexpr std::chrono::nanoseconds kCountTime = std::chrono::minutes(1);
constexpr double kCrowded = 0.95;
constexpr double kMiB = 1 << 20;

}  // namespace

// Without a quota everything does.
bool QuotaStore::fits(std::uint64_t size, double share) const {
  if (options_.bytes_max == 0) return true;
  const double room = share * (static_cast<double>(options_.bytes_max) - static_cast<double>(kReplacements));
  return static_cast<double>(used_ + held_ + size) <= room;
}

Status QuotaStore::count() {
  if (options_.bytes_max == 0) return ok_status();
  const std::lock_guard lock(mutex_);
  FLOTILLA_RETURN_IF_ERROR(count_locked());
  if (!crowded_) return ok_status();
  // Nobody writes now, so no write makes room.
  if (const Status made = options_.make_room(); !made.ok()) log_warning("store", "no room: {}", made.to_string());
  FLOTILLA_RETURN_IF_ERROR(count_locked());
  if (crowded_) {
    log_warning("store", "{} has {:.1f} of its {:.1f} MiB: no groups are asked for; raise {}", options_.prefix,
                static_cast<double>(used_ + held_) / kMiB, static_cast<double>(options_.bytes_max) / kMiB,
                options_.setting);
  }
  return ok_status();
}

Status QuotaStore::count_locked() {
  FLOTILLA_ASSIGN_OR_RETURN(const auto objects, list_all(inner_, options_.prefix));
  used_ = 0;
  for (const ObjectInfo& object : objects) used_ += object.size;
  counted_ = clock_.monotonic();
  crowded_ = !fits(0, kCrowded);
  return ok_status();
}

Status QuotaStore::check_room(std::string_view key, std::uint64_t size) {
  const bool stale = !counted_ || clock_.monotonic() - *counted_ >= kCountTime;
  if (stale || !fits(size, 1)) FLOTILLA_RETURN_IF_ERROR(count_locked());
  if (!fits(size, 1)) {
    if (inner_.head(key).ok()) return already_exists(fmt::format("'{}' exists", key));
    if (const Status made = options_.make_room(); !made.ok()) log_warning("store", "no room: {}", made.to_string());
    FLOTILLA_RETURN_IF_ERROR(count_locked());
  }
  if (fits(size, 1)) return ok_status();
  return resource_exhausted(fmt::format(
      "no room for '{}': {} has {:.1f} of its {:.1f} MiB, the object {:.1f}, and cleaning up has not made enough; if "
      "that stays so, raise {}",
      key, options_.prefix, static_cast<double>(used_ + held_) / kMiB, static_cast<double>(options_.bytes_max) / kMiB,
      static_cast<double>(size) / kMiB, options_.setting));
}

Result<ETag> QuotaStore::put_if_absent(std::string_view key, ByteSpan bytes) {
  const bool counts = options_.bytes_max > 0;
  if (counts) {
    const std::lock_guard lock(mutex_);
    FLOTILLA_RETURN_IF_ERROR(check_room(key, bytes.size()));
    held_ += bytes.size();
  }
  auto etag = inner_.put_if_absent(key, bytes);
  if (etag.status().code() == StatusCode::kResourceExhausted && options_.make_room().ok()) {
    etag = inner_.put_if_absent(key, bytes);
  }
  if (counts) {
    const std::lock_guard lock(mutex_);
    held_ -= bytes.size();
    // After any other error it may be there.
    if (etag.status().code() != StatusCode::kAlreadyExists) used_ += bytes.size();
  }
  return etag;
}

Result<ETag> QuotaStore::put_if_match(std::string_view key, ByteSpan bytes, const ETag& expected) {
  auto etag = inner_.put_if_match(key, bytes, expected);
  if (etag.status().code() != StatusCode::kResourceExhausted || !options_.make_room().ok()) return etag;
  return inner_.put_if_match(key, bytes, expected);
}

}  // namespace flotilla
