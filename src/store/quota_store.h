#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>

#include "base/clock.h"
#include "store/object_store.h"

namespace flotilla {

struct QuotaOptions {
  std::string prefix;           // what counts: all objects whose keys begin so
  std::uint64_t bytes_max = 0;  // 0: only what the inner store gives
  // Removes what is not needed, when a new object finds no room. It does not go through the quota's store.
  std::function<Status()> make_room;
  std::string setting;  // what a person raises to get more room
};

// A store whose new objects stay within a quota, by this side's own count: a listing, and what was written since. It is
// counted anew for a new object when the count is a minute old; so what others write may pass the quota by a minute's
// worth, and what goes through here never passes it. Replacements (`head`, statuses) are small
// and always allowed, in the room that is left for them. Where there is no room, here or in the inner store,
// `make_room` is asked once, and then the write is resource_exhausted. Thread safe.
class QuotaStore final : public ObjectStore {
 public:
  QuotaStore(ObjectStore& inner, QuotaOptions options, const Clock& clock = system_clock())
      : inner_(inner), options_(std::move(options)), clock_(clock) {}

  // Nearly full: others should write no more.
  bool crowded() const { return crowded_; }
  // Counts anew, and makes room when it is crowded.
  Status count();

  Result<Object> get(std::string_view key) override { return inner_.get(key); }
  Result<Bytes> get_range(std::string_view key, std::uint64_t offset, std::uint64_t length) override {
    return inner_.get_range(key, offset, length);
  }
  Result<Bytes> get_range_unless_stopped(std::string_view key, std::uint64_t offset, std::uint64_t length,
                                         const std::stop_token& stop) override {
    return inner_.get_range_unless_stopped(key, offset, length, stop);
  }
  Result<ObjectInfo> head(std::string_view key) override { return inner_.head(key); }
  Result<ETag> put_if_absent(std::string_view key, ByteSpan bytes) override;
  Result<ETag> put_if_match(std::string_view key, ByteSpan bytes, const ETag& expected) override;
  Result<ETag> put(std::string_view key, ByteSpan bytes) override { return inner_.put(key, bytes); }
  Result<ListPage> list(std::string_view prefix, std::string_view after, std::size_t limit) override {
    return inner_.list(prefix, after, limit);
  }
  Status remove(std::string_view key) override { return inner_.remove(key); }

 private:
  Status check_room(std::string_view key, std::uint64_t size);
  Status count_locked();
  bool fits(std::uint64_t size, double share) const;

  ObjectStore& inner_;
  const QuotaOptions options_;
  const Clock& clock_;
  std::atomic<bool> crowded_ = false;

  std::mutex mutex_;        // for all below
  std::uint64_t used_ = 0;  // by the last count and what was written since
  std::uint64_t held_ = 0;  // for writes under way
  std::optional<std::chrono::nanoseconds> counted_;
};

}  // namespace flotilla
