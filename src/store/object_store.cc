#include "store/object_store.h"

#include <algorithm>
#include <condition_variable>
#include <iterator>
#include <mutex>

#include <fmt/format.h>

#include "base/hashing.h"

namespace flotilla {
namespace {

constexpr std::size_t kKeyLimit = 512;
constexpr std::size_t kPartLimit = 255;  // what file systems allow a name

bool is_key_character(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '_' || c == '-';
}

// Keys end up in logs and error messages: show foreign bytes as numbers.
std::string printable(std::string_view key) {
  std::string text;
  for (const char c : key.substr(0, kKeyLimit)) {
    if (c >= ' ' && c < 127) {
      text += c;
    } else {
      text += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    }
  }
  return text;
}

// Everything of check_key except that the last part may be unfinished.
Status check_parts(std::string_view what, std::string_view key, bool last_unfinished) {
  if (key.size() > kKeyLimit)
    return invalid_argument(fmt::format("{} of {} bytes; at most {}", what, key.size(), kKeyLimit));
  std::size_t begin = 0;
  while (true) {
    const std::size_t end = std::min(key.find('/', begin), key.size());
    const std::string_view part = key.substr(begin, end - begin);
    const bool unfinished = last_unfinished && end == key.size();
    if (!std::all_of(part.begin(), part.end(), is_key_character)) {
      return invalid_argument(fmt::format("{} '{}' has a byte outside [A-Za-z0-9._-/]", what, printable(key)));
    }
    if (part.size() > kPartLimit) {
      return invalid_argument(
          fmt::format("{} '{}' has a part of {} bytes; at most {}", what, key, part.size(), kPartLimit));
    }
    if (!unfinished && (part.empty() || part == "." || part == "..")) {
      return invalid_argument(fmt::format("{} '{}' has the part '{}'", what, key, part));
    }
    if (end == key.size()) return ok_status();
    begin = end + 1;
  }
}

}  // namespace

Status check_key(std::string_view key) { return check_parts("key", key, false); }

Status check_list_arguments(std::string_view prefix, std::size_t limit) {
  if (limit < 1 || limit > 1000) return invalid_argument(fmt::format("list limit {}; expected 1 to 1000", limit));
  return check_parts("prefix", prefix, true);
}

Result<Bytes> ObjectStore::get_range_unless_stopped(std::string_view key, std::uint64_t offset, std::uint64_t length,
                                                    const std::stop_token& stop) {
  if (stop.stop_requested()) return cancelled(fmt::format("'{}': asked to stop", key));
  return get_range(key, offset, length);
}

Result<std::optional<Object>> ObjectStore::get_when_changed(std::string_view key, const ETag& known, std::uint64_t most,
                                                            const Watching& watching) {
  using Clock = std::chrono::steady_clock;
  const auto end = Clock::now() + watching.time;
  std::mutex mutex;
  std::condition_variable_any never;
  std::unique_lock lock(mutex);
  while (true) {
    FLOTILLA_ASSIGN_OR_RETURN(Bytes bytes, get_range(key, 0, most));
    ETag tag = content_tag(bytes);
    if (tag != known) return std::optional(Object{std::move(bytes), std::move(tag)});
    const auto now = Clock::now();
    if (now >= end) return std::optional<Object>();
    never.wait_until(lock, watching.stop, std::min(end, now + watching.look), [] { return false; });
    if (watching.stop.stop_requested()) return cancelled(fmt::format("'{}': asked to stop", key));
  }
}

ETag content_tag(ByteSpan bytes) { return sha256(bytes).to_hex().substr(0, 32); }

Result<std::vector<ObjectInfo>> list_all(ObjectStore& store, std::string_view prefix) {
  std::vector<ObjectInfo> objects;
  std::string after;
  do {
    FLOTILLA_ASSIGN_OR_RETURN(ListPage page, store.list(prefix, after));
    if (!page.next.empty() && page.next <= after) {
      return internal_error(
          fmt::format("list '{}': the page after '{}' points back to '{}'", prefix, after, page.next));
    }
    std::move(page.objects.begin(), page.objects.end(), std::back_inserter(objects));
    after = std::move(page.next);
  } while (!after.empty());
  return objects;
}

}  // namespace flotilla
