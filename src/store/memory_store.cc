#include <chrono>
#include <map>
#include <mutex>

#include <fmt/format.h>

#include "store/object_store.h"

namespace flotilla {
namespace {

class MemoryStore final : public ObjectStore {
 public:
  Result<Object> get(std::string_view key) override {
    const std::lock_guard lock(mutex_);
    FLOTILLA_ASSIGN_OR_RETURN(const Stored* object, find(key));
    return Object{object->bytes, object->etag};
  }

  Result<Bytes> get_range(std::string_view key, std::uint64_t offset, std::uint64_t length) override {
    const std::lock_guard lock(mutex_);
    FLOTILLA_ASSIGN_OR_RETURN(const Stored* object, find(key));
    const std::uint64_t size = object->bytes.size();
    if (offset > size) return invalid_argument(fmt::format("'{}': offset {} is past the end, {}", key, offset, size));
    const auto begin = object->bytes.begin() + static_cast<std::ptrdiff_t>(offset);
    return Bytes(begin, begin + static_cast<std::ptrdiff_t>(std::min(length, size - offset)));
  }

  Result<ObjectInfo> head(std::string_view key) override {
    const std::lock_guard lock(mutex_);
    FLOTILLA_ASSIGN_OR_RETURN(const Stored* object, find(key));
    return ObjectInfo{std::string(key), object->bytes.size(), object->etag};
  }

  Result<ETag> put_if_absent(std::string_view key, ByteSpan bytes) override {
    FLOTILLA_RETURN_IF_ERROR(check_key(key));
    const std::lock_guard lock(mutex_);
    if (objects_.find(key) != objects_.end()) return already_exists(fmt::format("'{}' exists", key));
    return write(key, bytes);
  }

  Result<ETag> put_if_match(std::string_view key, ByteSpan bytes, const ETag& expected) override {
    FLOTILLA_RETURN_IF_ERROR(check_key(key));
    const std::lock_guard lock(mutex_);
    const auto found = objects_.find(key);
    if (found == objects_.end()) return failed_precondition(fmt::format("'{}' does not exist", key));
    if (found->second.etag != expected) {
      return failed_precondition(fmt::format("'{}' has the tag {}; expected {}", key, found->second.etag, expected));
    }
    return write(key, bytes);
  }

  Result<ETag> put(std::string_view key, ByteSpan bytes) override {
    FLOTILLA_RETURN_IF_ERROR(check_key(key));
    const std::lock_guard lock(mutex_);
    return write(key, bytes);
  }

  Result<ListPage> list(std::string_view prefix, std::string_view after, std::size_t limit) override {
    FLOTILLA_RETURN_IF_ERROR(check_list_arguments(prefix, limit));
    const std::lock_guard lock(mutex_);
    ListPage page;
    for (auto it = after < prefix ? objects_.lower_bound(prefix) : objects_.upper_bound(after);
         it != objects_.end() && it->first.starts_with(prefix); ++it) {
      if (page.objects.size() == limit) {
        page.next = page.objects.back().key;
        break;
      }
      page.objects.push_back({it->first, it->second.bytes.size(), {}, it->second.modified});
    }
    return page;
  }

  Status remove(std::string_view key) override {
    FLOTILLA_RETURN_IF_ERROR(check_key(key));
    const std::lock_guard lock(mutex_);
    const auto found = objects_.find(key);
    if (found != objects_.end()) objects_.erase(found);
    return ok_status();
  }

 private:
  struct Stored : Object {
    std::chrono::seconds modified{0};
  };

  Result<const Stored*> find(std::string_view key) {
    FLOTILLA_RETURN_IF_ERROR(check_key(key));
    const auto found = objects_.find(key);
    if (found == objects_.end()) return not_found(fmt::format("'{}' does not exist", key));
    return &found->second;
  }

  // As a folder does, so that what works in a simulation works on disk.
  Status check_nesting(std::string_view key) {
    for (std::size_t end = key.find('/'); end != key.npos; end = key.find('/', end + 1)) {
      if (objects_.find(key.substr(0, end)) != objects_.end()) {
        return invalid_argument(fmt::format("'{}': '{}' is an object, not a folder", key, key.substr(0, end)));
      }
    }
    const std::string below = std::string(key) + '/';
    const auto next = objects_.lower_bound(below);
    if (next != objects_.end() && next->first.starts_with(below)) {
      return invalid_argument(fmt::format("'{}' is a folder, not an object", key));
    }
    return ok_status();
  }

  Result<ETag> write(std::string_view key, ByteSpan bytes) {
    FLOTILLA_RETURN_IF_ERROR(check_nesting(key));
    const auto now = std::chrono::system_clock::now().time_since_epoch();
    Stored object{{Bytes(bytes.begin(), bytes.end()), content_tag(bytes)},
                  std::chrono::duration_cast<std::chrono::seconds>(now)};
    ETag etag = object.etag;
    objects_.insert_or_assign(std::string(key), std::move(object));
    return etag;
  }

  std::mutex mutex_;
  std::map<std::string, Stored, std::less<>> objects_;
};

}  // namespace

std::unique_ptr<ObjectStore> make_memory_store() { return std::make_unique<MemoryStore>(); }

}  // namespace flotilla
