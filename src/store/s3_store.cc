#include "store/s3_store.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <mutex>

#include <fmt/format.h>

#include "base/hashing.h"
#include "base/log.h"
#include "store/change_watch.h"
#include "store/s3_xml.h"

namespace flotilla {
namespace {

constexpr std::string_view kDigestHeader = "x-amz-meta-sha256";
constexpr std::string_view kProbeKey = "probe/conditional-writes";
constexpr std::uint64_t kReservedMax = 32 << 20;            // so much is reserved on a server's word
constexpr std::uint64_t kSizeMax = std::uint64_t{1} << 46;  // S3's largest object has 50 TB
constexpr std::uint64_t kPartsMax = 10'000;
constexpr int kRestarts = 3;
// "Processing of a CompleteMultipartUpload request could take several minutes", says Amazon.
constexpr std::chrono::minutes kJoinTime{5};
// For an object to change: short enough for what stands between to keep the connection, and for one that is dead to be
// found out.
constexpr std::chrono::seconds kChangeTime{20};
constexpr std::chrono::seconds kChangeAnswerTime{30};

std::optional<std::uint64_t> parse_number(std::string_view text) {
  std::uint64_t value = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || error != std::errc() || stop != text.data() + text.size()) return std::nullopt;
  return value;
}

// The first byte that "bytes 5-9/100" speaks of.
std::optional<std::uint64_t> range_begin(std::string_view text) {
  if (!text.starts_with("bytes ")) return std::nullopt;
  text.remove_prefix(6);
  return parse_number(text.substr(0, text.find('-')));
}

// One object, or a part of it, over as many connections as it takes, all of one state of the object.
class Download {
 public:
  Download(std::string object, std::uint64_t offset, std::optional<std::uint64_t> length)
      : object_(std::move(object)), offset_(offset), length_(length) {}

  S3Call request() const {
    S3Call call{.method = "GET", .object = object_, .accepted = {416}};
    if (ranged()) {
      const bool open = !length_ || *length_ > ~std::uint64_t{0} - offset_;
      call.headers.emplace_back("range", open ? fmt::format("bytes={}-", begin())
                                              : fmt::format("bytes={}-{}", begin(), offset_ + *length_ - 1));
    }
    if (!etag_.empty()) {
      call.headers.emplace_back("if-match", etag_);
      call.accepted.push_back(412);
    }
    return call;
  }

  Status take(const HttpAnswer& head, ByteSpan piece) {
    if (!started_) FLOTILLA_RETURN_IF_ERROR(start(head));
    const auto skipped = static_cast<std::size_t>(std::min<std::uint64_t>(skip_, piece.size()));
    skip_ -= skipped;
    piece = piece.subspan(skipped);
    const std::uint64_t left = length_ ? *length_ - bytes.size() : ~std::uint64_t{0};
    piece = piece.first(static_cast<std::size_t>(std::min<std::uint64_t>(left, piece.size())));
    const std::uint64_t size = bytes.size() + piece.size();
    if (size > bytes.capacity()) {
      bytes.reserve(
          std::min(bytes.size() + std::max<std::uint64_t>(expected_, piece.size()), std::max(kReservedMax, 2 * size)));
    }
    bytes.insert(bytes.end(), piece.begin(), piece.end());
    expected_ -= std::min<std::uint64_t>(expected_, piece.size());
    return ok_status();
  }

  void begin_attempt() { started_ = false; }
  // The end of an attempt: an empty body has no piece that start() was called for.
  Status end(const HttpAnswer& head) { return started_ || head.status / 100 != 2 ? ok_status() : start(head); }
  void restart() { *this = Download(object_, offset_, length_); }

  Bytes bytes;
  ETag etag() const { return etag_; }
  const std::string& digest() const { return digest_; }

 private:
  std::uint64_t begin() const { return offset_ + bytes.size(); }
  bool ranged() const { return length_.has_value() || begin() > 0; }

  Status start(const HttpAnswer& head) {
    started_ = true;
    expected_ = std::min(parse_number(head.header("content-length")).value_or(0), length_.value_or(kSizeMax));
    skip_ = head.status == 206 ? 0 : begin();  // a server that does not know ranges
    if (head.status == 206 && range_begin(head.header("content-range")) != begin()) {
      return internal_error(fmt::format("asked for bytes from {} on, got '{}'", begin(), head.header("content-range")));
    }
    etag_ = head.header("etag");
    digest_ = head.header(kDigestHeader);
    return ok_status();
  }

  std::string object_;
  std::uint64_t offset_;
  std::optional<std::uint64_t> length_;
  ETag etag_;
  std::string digest_;
  bool started_ = false;
  std::uint64_t skip_ = 0;
  std::uint64_t expected_ = 0;
};

class S3Store final : public ObjectStore {
 public:
  explicit S3Store(std::unique_ptr<S3Client> client) : client_(std::move(client)) {}

  Result<Object> get(std::string_view key) override {
    FLOTILLA_RETURN_IF_ERROR(check_key(key));
    for (int attempt = 0;; ++attempt) {
      Download download(client_->object_key(key), 0, std::nullopt);
      FLOTILLA_ASSIGN_OR_RETURN(const int status, fetch(key, download, StopEvent({})));
      if (status == 416)
        return internal_error(fmt::format("'{}': answered 416 to a whole object", client_->where(key)));
      // Objects of other programs have no digest.
      if (download.digest().empty() || sha256(download.bytes).to_hex() == download.digest()) {
        return Object{std::move(download.bytes), download.etag()};
      }
      if (attempt > 0) return data_loss(fmt::format("'{}' does not match its SHA-256", client_->where(key)));
    }
  }

  Result<Bytes> get_range(std::string_view key, std::uint64_t offset, std::uint64_t length) override {
    return get_range_unless_stopped(key, offset, length, {});
  }

  Result<Bytes> get_range_unless_stopped(std::string_view key, std::uint64_t offset, std::uint64_t length,
                                         const std::stop_token& stop) override {
    FLOTILLA_RETURN_IF_ERROR(check_key(key));
    if (length > 0) {
      Download download(client_->object_key(key), offset, length);
      FLOTILLA_ASSIGN_OR_RETURN(const int status, fetch(key, download, StopEvent(stop)));
      if (status != 416) return std::move(download.bytes);
    }
    // HTTP has no empty ranges.
    FLOTILLA_ASSIGN_OR_RETURN(const ObjectInfo info, head(key));
    if (offset <= info.size) return Bytes();
    return invalid_argument(fmt::format("'{}': offset {} is past the end, {}", client_->where(key), offset, info.size));
  }

  Result<ObjectInfo> head(std::string_view key) override {
    FLOTILLA_RETURN_IF_ERROR(check_key(key));
    FLOTILLA_ASSIGN_OR_RETURN(const S3Answer answer,
                              client_->call({.method = "HEAD", .object = client_->object_key(key), .accepted = {404}}));
    if (answer.head.status == 404) return missing(key);
    const auto size = parse_number(answer.head.header("content-length"));
    if (!size) return internal_error(fmt::format("'{}': an answer without a length", client_->where(key)));
    return ObjectInfo{std::string(key), *size, ETag(answer.head.header("etag"))};
  }

  Result<std::optional<Object>> get_when_changed(std::string_view key, const ETag& known, std::uint64_t most,
                                                 const Watching& watching) override {
    FLOTILLA_RETURN_IF_ERROR(check_key(key));
    if (watching.time.count() == 0) return get_if_changed(key, known, most, {}, watching.stop);
    return watch(std::string(key), most).wait(known, watching);
  }

  Result<ETag> put_if_absent(std::string_view key, ByteSpan bytes) override {
    FLOTILLA_RETURN_IF_ERROR(check_key(key));
    if (client_->single_writer() || bytes.size() >= client_->options().multipart_bytes) {
      // Not all of it for nothing.
      const auto there = head(key);
      if (there.ok()) return already_exists(fmt::format("'{}' exists", client_->where(key)));
      if (there.status().code() != StatusCode::kNotFound) return there.status();
    }
    return write(key, bytes, condition("if-none-match", "*"),
                 [&] { return already_exists(fmt::format("'{}' exists", client_->where(key))); });
  }

  Result<ETag> put_if_match(std::string_view key, ByteSpan bytes, const ETag& expected) override {
    FLOTILLA_RETURN_IF_ERROR(check_key(key));
    const auto other = [&] {
      return failed_precondition(
          fmt::format("'{}' is missing or has another tag than {}", client_->where(key), expected));
    };
    const bool plain = std::all_of(expected.begin(), expected.end(), [](char c) { return c >= ' ' && c < 127; });
    if (expected.empty() || expected == "*" || !plain) return other();
    const ETag quoted = expected.find('"') == expected.npos ? "\"" + expected + "\"" : expected;
    if (client_->single_writer()) {
      const auto there = head(key);
      if (there.status().code() == StatusCode::kNotFound) return other();
      if (!there.ok()) return there.status();
      if (there->etag != expected && there->etag != quoted) return other();
    }
    return write(key, bytes, condition("if-match", quoted), other);
  }

  Result<ETag> put(std::string_view key, ByteSpan bytes) override {
    FLOTILLA_RETURN_IF_ERROR(check_key(key));
    return write(key, bytes, {}, [&] { return internal_error(fmt::format("'{}': refused", client_->where(key))); });
  }

  Result<ListPage> list(std::string_view prefix, std::string_view after, std::size_t limit) override {
    FLOTILLA_RETURN_IF_ERROR(check_list_arguments(prefix, limit));
    // What keys have in front here and not in the bucket, and the other way round.
    std::string_view lead, relative = after;
    const std::string base = client_->object_key("");
    if (client_->buckets_in_keys()) {
      const std::size_t slash = prefix.find('/');
      if (slash == prefix.npos) return invalid_argument(fmt::format("'{}' names no bucket to list", prefix));
      lead = prefix.substr(0, slash + 1);
      if (after > lead && !after.starts_with(lead)) return ListPage{};
      relative = after.starts_with(lead) ? after.substr(lead.size()) : std::string_view();
    }
    const std::string inner = base + std::string(prefix.substr(lead.size()));
    S3Call call{.method = "GET",
                .object = std::string(lead.substr(0, lead.empty() ? 0 : lead.size() - 1)),
                .query = {{"list-type", "2"}, {"max-keys", std::to_string(limit)}, {"prefix", inner}}};
    // Control characters are in no key and not in every server's URLs.
    const auto control =
        std::find_if(relative.begin(), relative.end(), [](char c) { return (c >= 0 && c < ' ') || c == 127; });
    const std::string_view start(relative.begin(), control);
    if (!start.empty()) call.query.emplace_back("start-after", base + std::string(start));
    FLOTILLA_ASSIGN_OR_RETURN(const S3Answer answer, client_->call(call));
    FLOTILLA_ASSIGN_OR_RETURN(BucketListing listing,
                              parse_s3_listing(answer.text).with_context("list " + client_->where(prefix)));
    ListPage page;
    for (BucketListing::Entry& entry : listing.entries) {
      if (!entry.key.starts_with(inner)) {
        return internal_error(fmt::format("list '{}': a key that does not begin so", client_->where(prefix)));
      }
      std::string key = std::string(lead) + entry.key.substr(base.size());
      if (listing.truncated) page.next = key;
      // A bucket may hold what others put there.
      if (key > after && check_key(key).ok()) {
        page.objects.push_back({std::move(key), entry.size, {}, entry.modified});
      }
    }
    return page;
  }

  Status remove(std::string_view key) override {
    FLOTILLA_RETURN_IF_ERROR(check_key(key));
    const auto answer = client_->call({.method = "DELETE", .object = client_->object_key(key)});
    return answer.status().code() == StatusCode::kNotFound ? ok_status() : answer.status();
  }

  // An error when the bucket certainly does not exist. What else is wrong, the first operation says.
  Status check_bucket() {
    if (client_->buckets_in_keys()) return ok_status();
    const auto answer = client_->call({.method = "HEAD", .accepted = {404}});
    if (answer.ok() && answer->head.status == 404) {
      return failed_precondition(fmt::format("'{}': there is no such bucket; make it first", client_->where("")));
    }
    if (!answer.ok()) log_warning("store", "{}", answer.status().to_string());
    return ok_status();
  }

  Status check_conditions() {
    if (client_->buckets_in_keys()) return ok_status();  // and no place to try it in
    if (client_->single_writer()) {
      log_warning("store", "'{}': writes are not conditional: nothing but care keeps a second learner away",
                  client_->where(""));
      return ok_status();
    }
    const auto unfit = [&](std::string_view what) {
      return failed_precondition(
          fmt::format("'{}': a hub needs conditional writes, and the server {}. Where there will be one learner only, "
                      "--single-writer (single-writer=yes in the address) does without",
                      client_->where(""), what));
    };
    const auto ignores = [&](std::string_view header) { return unfit(fmt::format("ignores {}", header)); };
    const auto refuses = [&](const Status& status) { return unfit("refuses it: " + status.message()); };
    const auto first = put_if_absent(kProbeKey, as_bytes("1"));
    if (first.status().code() == StatusCode::kInvalidArgument) return refuses(first.status());
    if (!first.ok() && first.status().code() != StatusCode::kAlreadyExists) return first.status();
    const auto second = put_if_absent(kProbeKey, as_bytes("2"));
    if (second.ok()) return ignores("If-None-Match");
    if (second.status().code() != StatusCode::kAlreadyExists) return second.status();
    const auto third = put_if_match(kProbeKey, as_bytes("3"), "\"0123456789abcdef0123456789abcdef\"");
    if (third.ok()) return ignores("If-Match");
    if (third.status().code() == StatusCode::kInvalidArgument) return refuses(third.status());
    if (third.status().code() != StatusCode::kFailedPrecondition) return third.status();
    // Others may be at it too; without the right to delete, it stays.
    if (const Status removed = remove(kProbeKey); !removed.ok()) log_info("store", "{}", removed.to_string());
    return ok_status();
  }

 private:
  // What a write is sent with; servers without conditional writes may refuse it.
  NamedValues condition(std::string_view name, std::string_view value) const {
    if (client_->single_writer()) return {};
    return {{std::string(name), std::string(value)}};
  }

  Status missing(std::string_view key) const {
    return not_found(fmt::format("'{}' does not exist", client_->where(key)));
  }

  // Nothing when the object's tag is `known`; a server that can (RFC 7240) waits for another for so long.
  Result<std::optional<Object>> get_if_changed(std::string_view key, const ETag& known, std::uint64_t most,
                                               std::chrono::seconds wait, const std::stop_token& stop) {
    S3Call call{.method = "GET",
                .object = client_->object_key(key),
                .headers = {{"range", fmt::format("bytes=0-{}", most - 1)}},
                .accepted = {304, 416}};
    if (!known.empty()) call.headers.emplace_back("if-none-match", known);
    if (!known.empty() && wait.count() > 0) {
      call.headers.emplace_back("prefer", fmt::format("wait={}", wait.count()));
      call.answer_within = kChangeAnswerTime;
    }
    auto answer = client_->call([&] { return call; }, nullptr, StopEvent(stop));
    if (answer.status().code() == StatusCode::kNotFound) return missing(key);
    if (!answer.ok()) return answer.status();
    if (answer->head.status == 304) return std::optional<Object>();
    if (answer->head.status == 416) answer->text.clear();  // HTTP has no ranges of an empty object
    const ByteSpan bytes = as_bytes(answer->text).first(std::min<std::size_t>(answer->text.size(), most));
    return std::optional(Object{Bytes(bytes.begin(), bytes.end()), ETag(answer->head.header("etag"))});
  }

  ChangeWatch& watch(std::string key, std::uint64_t most) {
    const std::lock_guard lock(watches_mutex_);
    std::unique_ptr<ChangeWatch>& watch = watches_[{key, most}];
    if (watch == nullptr) {
      watch = std::make_unique<ChangeWatch>([this, key, most](const ETag& known, const std::stop_token& stop) {
        return get_if_changed(key, known, most, kChangeTime, stop);
      });
    }
    return *watch;
  }

  // The status of the answer that ended it: success, or 416.
  Result<int> fetch(std::string_view key, Download& download, const StopEvent& stop) {
    for (int restart = 0; restart < kRestarts; ++restart) {
      const auto answer = client_->call(
          [&] {
            download.begin_attempt();
            return download.request();
          },
          [&](const HttpAnswer& head, ByteSpan piece) { return download.take(head, piece); }, stop);
      if (answer.status().code() == StatusCode::kNotFound) return missing(key);
      if (!answer.ok()) return answer.status();
      FLOTILLA_RETURN_IF_ERROR(download.end(answer->head));
      // Cut after its last byte, a download has nothing left to ask for.
      if (answer->head.status == 416 && !download.bytes.empty()) return 206;
      if (answer->head.status != 412) return answer->head.status;
      download.restart();  // replaced meanwhile: bytes of two states do not belong together
    }
    return unavailable(fmt::format("'{}' changes faster than it can be read", client_->where(key)));
  }

  // An answer to a conditional write as a status; `refused` says what a condition that failed means.
  template <typename Refused>
  Status verdict(std::string_view key, const S3Answer& answer, const Refused& refused) const {
    const int status = answer.head.status;
    if (status / 100 == 2) return ok_status();
    if (answer.unsure) {
      return unavailable(fmt::format("'{}': an answer was lost, and now the write is refused ({}): it may be its own",
                                     client_->where(key), status));
    }
    return refused();
  }

  template <typename Refused>
  Result<ETag> write(std::string_view key, ByteSpan bytes, NamedValues conditions, const Refused& refused) {
    if (bytes.size() >= client_->options().multipart_bytes)
      return write_parts(key, bytes, std::move(conditions), refused);
    S3Call call{.method = "PUT", .object = client_->object_key(key), .headers = std::move(conditions), .body = bytes};
    if (!call.headers.empty()) call.accepted = {404, 412};
    call.headers.emplace_back(kDigestHeader, sha256(bytes).to_hex());
    FLOTILLA_ASSIGN_OR_RETURN(const S3Answer answer, client_->call(call));
    if (parse_s3_error(answer.text).code == "NoSuchBucket") {
      return unavailable(fmt::format("'{}': the bucket is gone", client_->where(key)));
    }
    FLOTILLA_RETURN_IF_ERROR(verdict(key, answer, refused));
    return tag_of(key, answer.head.header("etag"));
  }

  Result<ETag> tag_of(std::string_view key, std::string_view etag) const {
    if (etag.empty())
      return internal_error(fmt::format("'{}': written, but the answer has no tag", client_->where(key)));
    return ETag(etag);
  }

  template <typename Refused>
  Result<ETag> write_parts(std::string_view key, ByteSpan bytes, NamedValues conditions, const Refused& refused) {
    const std::string object = client_->object_key(key);
    FLOTILLA_ASSIGN_OR_RETURN(const S3Answer begun,
                              client_->call({.method = "POST",
                                             .object = object,
                                             .query = {{"uploads", ""}},
                                             .headers = {{std::string(kDigestHeader), sha256(bytes).to_hex()}}}));
    FLOTILLA_ASSIGN_OR_RETURN(const std::string upload, parse_upload_id(begun.text).with_context(client_->where(key)));
    auto etag = send_parts(key, object, upload, bytes, std::move(conditions), refused);
    if (!etag.ok()) {
      // Parts of an upload that does not end cost money until somebody removes them.
      const auto aborted =
          client_->call({.method = "DELETE", .object = object, .query = {{"uploadId", upload}}, .accepted = {404}});
      if (!aborted.ok())
        log_warning("store", "parts of {} stay: {}", client_->where(key), aborted.status().to_string());
    }
    return etag;
  }

  template <typename Refused>
  Result<ETag> send_parts(std::string_view key, const std::string& object, const std::string& upload, ByteSpan bytes,
                          NamedValues conditions, const Refused& refused) {
    const std::uint64_t size = std::max(client_->options().part_bytes, bytes.size() / kPartsMax + 1);
    std::vector<std::string> tags;
    for (std::size_t begin = 0; begin < bytes.size(); begin += size) {
      const ByteSpan part = bytes.subspan(begin, std::min<std::size_t>(size, bytes.size() - begin));
      FLOTILLA_ASSIGN_OR_RETURN(
          const S3Answer sent,
          client_->call({.method = "PUT",
                         .object = object,
                         .query = {{"partNumber", std::to_string(tags.size() + 1)}, {"uploadId", upload}},
                         .body = part}));
      FLOTILLA_ASSIGN_OR_RETURN(std::string tag, tag_of(key, sent.head.header("etag")));
      tags.push_back(std::move(tag));
    }
    const std::string list = complete_upload_xml(tags);
    // After a conflict with another writer, the upload has to begin anew: the caller's to decide.
    FLOTILLA_ASSIGN_OR_RETURN(const S3Answer ended, client_->call({.method = "POST",
                                                                   .object = object,
                                                                   .query = {{"uploadId", upload}},
                                                                   .headers = std::move(conditions),
                                                                   .body = as_bytes(list),
                                                                   .accepted = {404, 409, 412},
                                                                   .answer_within = kJoinTime}));
    if (ended.head.status == 409)
      return unavailable(fmt::format("'{}' is being written by another", client_->where(key)));
    if (ended.head.status == 404 && parse_s3_error(ended.text).code != "NoSuchKey") {
      return unavailable(fmt::format("'{}': the server does not know the upload", client_->where(key)));
    }
    FLOTILLA_RETURN_IF_ERROR(verdict(key, ended, refused));
    return parse_completed_etag(ended.text).with_context(client_->where(key));
  }

  const std::unique_ptr<S3Client> client_;
  std::mutex watches_mutex_;
  std::map<std::pair<std::string, std::uint64_t>, std::unique_ptr<ChangeWatch>> watches_;  // they use what is above
};

}  // namespace

Result<std::unique_ptr<ObjectStore>> open_s3_store(std::string_view address, bool create, std::stop_token calm,
                                                   S3Options options) {
  FLOTILLA_ASSIGN_OR_RETURN(auto client, S3Client::open(address, std::move(options), std::move(calm)));
  auto store = std::make_unique<S3Store>(std::move(client));
  FLOTILLA_RETURN_IF_ERROR(store->check_bucket());
  if (create) FLOTILLA_RETURN_IF_ERROR(store->check_conditions());
  return std::unique_ptr<ObjectStore>(std::move(store));
}

}  // namespace flotilla
