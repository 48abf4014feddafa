#include "hub/object_service.h"

#include <sys/stat.h>

#include <algorithm>
#include <tuple>

#include <fmt/format.h>

#include "base/log.h"
#include "hub/s3_xml.h"

namespace flotilla {
namespace {

constexpr std::ptrdiff_t kUploadsMax = 16;  // open ones of one token
constexpr std::time_t kUploadAge = 24 * 3600;
constexpr std::time_t kDay = 24 * 3600;
constexpr std::size_t kPageKeys = 1000;

S3Error no_such_upload() { return {404, "NoSuchUpload", "there is no such upload of this token"}; }
S3Error precondition(std::string message) { return {412, "PreconditionFailed", std::move(message)}; }

NamedValues tag_header(std::string_view tag) { return {{"etag", fmt::format("\"{}\"", tag)}}; }

// A group, an event segment or a claim of a run: what retention may take.
bool ages(std::string_view key) {
  const auto parts = split_key(key);
  return parts.size() > 3 && (parts[2] == "rollouts" || parts[2] == "events" || parts[2] == "claims");
}

}  // namespace

ObjectService::ObjectService(std::string root, TokenStore& tokens)
    : tokens_(tokens), tree_(std::move(root)), uploads_(tree_) {}

ObjectService::Held::~Held() {
  if (!owner_.empty()) service_.owners_.settle(owner_, bytes_, 0);
  if (!token_.empty()) service_.writers_.settle(token_, bytes_, 0);
}

std::optional<S3Error> ObjectService::Held::of_owner(const std::string& owner, std::uint64_t bytes) {
  const auto limits = service_.tokens_.owner(owner);
  if (!limits.ok()) return s3_error_of(limits.status());
  if (limits->bytes_max > 0 && !service_.counted_) {
    return S3Error{503, "SlowDown", "what the owner has is being counted; come again"};
  }
  if (const Status held = service_.owners_.hold(owner, bytes, limits->bytes_max); !held.ok()) return s3_error_of(held);
  owner_ = owner;
  bytes_ = bytes;
  return std::nullopt;
}

std::optional<S3Error> ObjectService::Held::of_token(const HubToken& token, std::uint64_t bytes) {
  const std::uint64_t written_max = token.limits.written_bytes_max;
  const std::uint64_t left = written_max - std::min(written_max, token.written_bytes);
  if (written_max > 0 && left == 0) return S3Error{507, "QuotaExceeded", "the token has written all that it may"};
  if (const Status held = service_.writers_.hold(token.id, bytes, left); !held.ok()) return s3_error_of(held);
  token_ = token.id;
  bytes_ = bytes;
  return std::nullopt;
}

S3Result<std::unique_ptr<ObjectService::Incoming>> ObjectService::begin(const Admitted& admitted) {
  const S3Request& request = admitted.request;
  std::unique_ptr<Incoming> incoming(new Incoming(*this));
  if (request.operation != S3Operation::kPut && request.operation != S3Operation::kUploadPart) {
    std::string& text = incoming->target_.emplace<std::string>();
    incoming->receiver_.emplace(admitted, [&text](ByteSpan bytes) {
      text.append(as_text(bytes));
      return ok_status();
    });
    return incoming;
  }

  const std::uint64_t bytes = request.body.bytes;
  if (auto refused = incoming->held_.of_owner(request.owner, bytes)) return *refused;
  if (auto refused = incoming->held_.of_token(admitted.token, bytes)) return *refused;

  int file = -1;
  if (request.operation == S3Operation::kPut) {
    if (auto refused = check_place(admitted)) return *refused;
    auto upload = tree_.begin(request.key);
    if (!upload.ok()) return s3_error_of(upload.status());
    file = incoming->target_.emplace<DirectoryTree::Upload>(*std::move(upload)).file();
  } else {
    if (!uploads_.check(request.upload_id, request.key, admitted.token.id).ok()) return no_such_upload();
    if (upload_bytes(request.upload_id) + bytes > admitted.token.limits.object_bytes_max) {
      return S3Error{413, "EntityTooLarge",
                     fmt::format("the parts pass {} bytes", admitted.token.limits.object_bytes_max)};
    }
    auto part = uploads_.begin_part(request.upload_id);
    if (!part.ok()) return no_such_upload();
    file = incoming->target_.emplace<MultipartUploads::Part>(*std::move(part)).file();
  }
  incoming->receiver_.emplace(
      admitted, [this, file, &request](ByteSpan piece) { return append(file, piece, tree_.where(request.key)); });
  return incoming;
}

S3Error ObjectService::body_error(const Status& status) {
  switch (status.code()) {
    case StatusCode::kInvalidArgument: return {400, "IncompleteBody", status.message()};
    case StatusCode::kDataLoss: return {400, "BadDigest", status.message()};
    case StatusCode::kPermissionDenied: return {403, "SignatureDoesNotMatch", status.message()};
    default: return s3_error_of(status);
  }
}

S3Result<HubAnswer> ObjectService::finish(const Admitted& admitted, Incoming& incoming) {
  const S3Request& request = admitted.request;
  const auto digest = incoming.receiver_->finish();
  if (!digest.ok()) return body_error(digest.status());
  if (const auto* text = std::get_if<std::string>(&incoming.target_)) {
    if (request.operation == S3Operation::kDeleteObjects) return remove_many(admitted, *text);
    if (request.operation == S3Operation::kCompleteUpload) return complete_upload(admitted, *text);
    return answer(admitted);
  }
  if (auto* part = std::get_if<MultipartUploads::Part>(&incoming.target_)) {
    const Status named = uploads_.finish_part(*part, request.part_number, *digest);
    if (!named.ok()) return named.code() == StatusCode::kNotFound ? no_such_upload() : s3_error_of(named);
    owners_.settle(request.owner, 0, static_cast<std::int64_t>(request.body.bytes));
  } else if (auto refused = place(admitted, std::get<DirectoryTree::Upload>(incoming.target_), request.body.bytes)) {
    return *refused;
  }
  count_written(admitted.token.id, request.body.bytes);
  HubAnswer answer;
  answer.headers = tag_header(digest->to_hex());
  return answer;
}

void ObjectService::count_written(const std::string& token, std::uint64_t bytes) {
  if (const Status counted = tokens_.add_written(token, bytes); !counted.ok()) {
    log_warning("hub", "what token {} has written was not counted: {}", token, counted.to_string());
  }
}

S3Result<HubAnswer> ObjectService::answer(const Admitted& admitted) {
  const S3Request& request = admitted.request;
  switch (request.operation) {
    case S3Operation::kListBuckets: return xml_answer(200, buckets_xml(owner_of(admitted.token.grant.scope)));
    case S3Operation::kHeadBucket: return HubAnswer{};
    case S3Operation::kCreateBucket: return S3Error{409, "BucketAlreadyOwnedByYou", "every owner has its bucket"};
    case S3Operation::kBucketLocation: return xml_answer(200, location_xml());
    case S3Operation::kList: return list(request);
    case S3Operation::kGet:
    case S3Operation::kHead: return read(request);
    case S3Operation::kDelete: return remove(request);
    case S3Operation::kStartUpload: return start_upload(admitted);
    case S3Operation::kListParts: return list_parts(admitted);
    case S3Operation::kAbortUpload: return abort_upload(admitted);
    case S3Operation::kListUploads: return list_uploads(admitted);
    case S3Operation::kCopy: return copy(admitted);
    case S3Operation::kPut:
    case S3Operation::kUploadPart:
    case S3Operation::kDeleteObjects:
    case S3Operation::kCompleteUpload: break;
  }
  return S3Error{500, "InternalError", "an operation without its body"};
}

S3Result<HubAnswer> ObjectService::read(const S3Request& request) const {
  auto file = tree_.open(request.key);
  if (!file.ok()) return s3_error_of(file.status());
  const auto tag = tags_.tag_of(*file, tree_.where(request.key));
  if (!tag.ok()) return s3_error_of(tag.status());
  if (request.if_match && !names_tag(*request.if_match, *tag)) return precondition("the object has another tag");
  HubAnswer answer;
  answer.headers = tag_header(*tag);
  if (request.if_none_match && names_tag(*request.if_none_match, *tag)) {
    answer.status = 304;
    return answer;
  }
  struct stat info {};
  if (::fstat(file->fd.get(), &info) != 0) return s3_error_of(errno_status(errno, "look at an object"));
  answer.headers.emplace_back("last-modified", http_time(info.st_mtime));
  answer.headers.emplace_back("accept-ranges", "bytes");
  answer.headers.emplace_back("x-amz-meta-sha256", *tag);  // where our own client looks for it
  answer.headers.emplace_back("content-type", "application/octet-stream");
  answer.section = {0, file->size};
  if (request.range) {
    const auto section = section_of(*request.range, file->size);
    if (!section) {
      return S3Error{416, "InvalidRange", fmt::format("the range is outside of the object's {} bytes", file->size)};
    }
    answer.status = 206;
    answer.section = *section;
    answer.headers.emplace_back("content-range", fmt::format("bytes {}-{}/{}", section->offset,
                                                             section->offset + section->count - 1, file->size));
  }
  answer.file = *std::move(file);
  return answer;
}

std::string ObjectService::state_of(const std::string& key) const {
  const auto file = tree_.open(key);
  struct stat info {};
  if (!file.ok() || ::fstat(file->fd.get(), &info) != 0) return std::string(status_code_name(file.status().code()));
  return fmt::format("{} {} {} {}.{} {}.{}", info.st_dev, info.st_ino, info.st_size, info.st_mtim.tv_sec,
                     info.st_mtim.tv_nsec, info.st_ctim.tv_sec, info.st_ctim.tv_nsec);
}

S3Result<HubAnswer> ObjectService::list(const S3Request& request) const {
  const std::string prefix = fmt::format("{}/{}", request.owner, request.listing.prefix);
  DirectoryTree::Page page;
  if (request.listing.limit > 0 && check_list_arguments(prefix, request.listing.limit).ok()) {
    const std::string after =
        request.listing.after.empty() ? std::string() : fmt::format("{}/{}", request.owner, request.listing.after);
    auto found = tree_.list(prefix, after, request.listing.limit,
                            request.listing.one_level ? DirectoryTree::Depth::kOneLevel : DirectoryTree::Depth::kAll);
    if (!found.ok()) return s3_error_of(found.status());
    page = *std::move(found);
  }  // else: no key begins like that
  return xml_answer(200, listing_xml(request.owner, request.listing, page));
}

std::optional<S3Error> ObjectService::check_place(const Admitted& admitted) const {
  const S3Request& request = admitted.request;
  const bool absent = request.if_none_match || writes_once(admitted.token.grant, request.key);
  const auto present = tree_.open(request.key);
  if (present.ok() && absent) return precondition("the object exists");
  if (present.status().code() == StatusCode::kNotFound && request.if_match) return s3_error_of(present.status());
  if (!present.ok() && present.status().code() != StatusCode::kNotFound) return s3_error_of(present.status());
  return std::nullopt;
}

std::optional<S3Error> ObjectService::place(const Admitted& admitted, const DirectoryTree::Upload& upload,
                                            std::uint64_t bytes) {
  const S3Request& request = admitted.request;
  const bool absent = request.if_none_match || writes_once(admitted.token.grant, request.key);
  if (absent && request.if_match) return precondition("each of these objects is written once");
  std::uint64_t replaced = 0;
  bool missing = false;
  const auto allowed = [&](const OpenFile* present) -> Status {
    if (present != nullptr) replaced = present->size;
    if (!request.if_match) return ok_status();
    missing = present == nullptr;
    if (missing) return not_found("the object does not exist");
    FLOTILLA_ASSIGN_OR_RETURN(const std::string tag, tags_.tag_of(*present, tree_.where(request.key)));
    return names_tag(*request.if_match, tag) ? ok_status() : failed_precondition("the object has another tag");
  };
  const Status placed = absent ? tree_.create(upload, request.key) : tree_.replace(upload, request.key, allowed);
  if (!placed.ok()) return s3_error_of(placed);
  owners_.settle(request.owner, 0, static_cast<std::int64_t>(bytes) - static_cast<std::int64_t>(replaced));
  return std::nullopt;
}

Status ObjectService::remove_object(const std::string& key) {
  const auto file = tree_.open(key);
  if (file.status().code() == StatusCode::kNotFound) return ok_status();
  if (!file.ok()) return file.status();
  FLOTILLA_RETURN_IF_ERROR(tree_.remove(key));
  owners_.settle(std::string(owner_of(key)), 0, -static_cast<std::int64_t>(file->size));
  return ok_status();
}

S3Result<HubAnswer> ObjectService::remove(const S3Request& request) {
  if (const Status removed = remove_object(request.key); !removed.ok()) return s3_error_of(removed);
  HubAnswer answer;
  answer.status = 204;
  return answer;
}

S3Result<HubAnswer> ObjectService::remove_many(const Admitted& admitted, std::string_view body) {
  const auto wanted = read_delete_body(body);
  if (!wanted.ok()) return S3Error{400, "MalformedXML", wanted.status().message()};
  std::vector<Deletion> deletions;
  std::optional<S3Error> refused;
  for (const std::string& below : wanted->keys) {
    Deletion one{below, std::nullopt};
    const std::string key = fmt::format("{}/{}", admitted.request.owner, below);
    Status status = check_key(key);
    if (status.ok()) status = check_access(admitted.token.grant, HubAction::kRemove, key);
    if (status.ok()) status = remove_object(key);
    if (!status.ok()) {
      one.error = s3_error_of(status);
      if (!refused) refused = one.error;
      if (refused->detail == status.message()) refused->detail = fmt::format("{}: {}", below, status.message());
    }
    deletions.push_back(std::move(one));
  }
  HubAnswer answer = xml_answer(200, deletions_xml(deletions, wanted->quiet));
  answer.refused = std::move(refused);
  return answer;
}

std::uint64_t ObjectService::upload_bytes(const std::string& id) const {
  std::uint64_t bytes = 0;
  const auto parts = uploads_.parts(id);
  if (!parts.ok()) return 0;
  for (const auto& part : *parts) bytes += part.size;
  return bytes;
}

S3Result<HubAnswer> ObjectService::start_upload(const Admitted& admitted) {
  const S3Request& request = admitted.request;
  if (auto refused = check_place(admitted)) return *refused;
  const auto open = uploads_.list();
  if (!open.ok()) return s3_error_of(open.status());
  if (std::ranges::count(*open, admitted.token.id, &MultipartUploads::Open::token) >= kUploadsMax) {
    return S3Error{503, "SlowDown", fmt::format("the token has {} open uploads; complete or abort one", kUploadsMax)};
  }
  const auto id = uploads_.start(request.key, admitted.token.id);
  if (!id.ok()) return s3_error_of(id.status());
  return xml_answer(200, started_xml(request.owner, request.key, *id));
}

S3Result<HubAnswer> ObjectService::list_parts(const Admitted& admitted) const {
  const S3Request& request = admitted.request;
  if (!uploads_.check(request.upload_id, request.key, admitted.token.id).ok()) return no_such_upload();
  const auto parts = uploads_.parts(request.upload_id);
  if (!parts.ok()) return no_such_upload();
  return xml_answer(200, parts_xml(request.owner, request.key, request.upload_id, *parts));
}

S3Result<HubAnswer> ObjectService::complete_upload(const Admitted& admitted, std::string_view body) {
  const S3Request& request = admitted.request;
  const auto wanted = read_complete_body(body);
  if (!wanted.ok()) return S3Error{400, "MalformedXML", wanted.status().message()};
  if (!uploads_.check(request.upload_id, request.key, admitted.token.id).ok()) return no_such_upload();
  if (auto refused = check_place(admitted)) return *refused;
  Held held(*this);  // until the parts go, the disk has them twice
  if (auto refused = held.of_owner(request.owner, upload_bytes(request.upload_id))) return *refused;
  const auto upload = tree_.begin(request.key);
  if (!upload.ok()) return s3_error_of(upload.status());
  const auto digest = uploads_.join(request.upload_id, *wanted, upload->file());
  if (!digest.ok()) {
    return digest.status().code() == StatusCode::kInvalidArgument
               ? S3Error{400, "InvalidPart", digest.status().message()}
               : s3_error_of(digest.status());
  }
  struct stat info {};
  if (::fstat(upload->file(), &info) != 0) return s3_error_of(errno_status(errno, "look at an upload"));
  if (auto refused = place(admitted, *upload, static_cast<std::uint64_t>(info.st_size))) return *refused;
  if (auto aborted = abort_upload(admitted); std::holds_alternative<S3Error>(aborted)) {
    log_warning("hub", "the parts of {} stay for a day: {}", request.key, std::get<S3Error>(aborted).message);
  }
  HubAnswer answer = xml_answer(200, completed_xml(request.owner, request.key, digest->to_hex()));
  answer.headers.push_back(tag_header(digest->to_hex()).front());
  return answer;
}

S3Result<HubAnswer> ObjectService::abort_upload(const Admitted& admitted) {
  const S3Request& request = admitted.request;
  if (!uploads_.check(request.upload_id, request.key, admitted.token.id).ok()) return no_such_upload();
  const std::uint64_t bytes = upload_bytes(request.upload_id);
  if (const Status aborted = uploads_.abort(request.upload_id); !aborted.ok()) return s3_error_of(aborted);
  owners_.settle(request.owner, 0, -static_cast<std::int64_t>(bytes));
  HubAnswer answer;
  answer.status = 204;
  return answer;
}

S3Result<HubAnswer> ObjectService::list_uploads(const Admitted& admitted) const {
  const S3Request& request = admitted.request;
  auto open = uploads_.list();
  if (!open.ok()) return s3_error_of(open.status());
  const std::string prefix = fmt::format("{}/{}", request.owner, request.listing.prefix);
  std::erase_if(*open, [&](const MultipartUploads::Open& upload) {
    return upload.token != admitted.token.id || !upload.key.starts_with(prefix);
  });
  std::ranges::sort(*open, {}, [](const MultipartUploads::Open& upload) { return std::tie(upload.key, upload.id); });
  return xml_answer(200, uploads_xml(request.owner, request.listing.prefix, *open));
}

S3Result<HubAnswer> ObjectService::copy(const Admitted& admitted) {
  const S3Request& request = admitted.request;
  if (auto refused = check_place(admitted)) return *refused;
  const auto source = tree_.open(request.copy_source);
  if (!source.ok()) return s3_error_of(source.status());
  const std::uint64_t limit = admitted.token.limits.object_bytes_max;
  if (source->size > limit) {
    return S3Error{413, "EntityTooLarge", fmt::format("{} bytes; at most {} are taken", source->size, limit)};
  }
  Held held(*this);
  if (auto refused = held.of_owner(request.owner, source->size)) return *refused;
  if (auto refused = held.of_token(admitted.token, source->size)) return *refused;
  const auto upload = tree_.begin(request.key);
  if (!upload.ok()) return s3_error_of(upload.status());
  Sha256 hash;
  if (const Status copied = append_all(*source, upload->file(), hash, tree_.where(request.key)); !copied.ok()) {
    return s3_error_of(copied);
  }
  if (auto refused = place(admitted, *upload, source->size)) return *refused;
  count_written(admitted.token.id, source->size);
  return xml_answer(200, copied_xml(hash.finish().to_hex(), std::time(nullptr)));
}

Status ObjectService::maintain(std::time_t now) {
  owners_.begin_count();
  std::map<std::string, std::uint64_t> used;
  FLOTILLA_ASSIGN_OR_RETURN(const auto open, uploads_.list());
  for (const auto& upload : open) {
    if (now - upload.started > kUploadAge) {
      const Status aborted = uploads_.abort(upload.id);
      if (aborted.ok()) {
        log_info("hub", "an upload of {} that was begun a day ago is given up", upload.key);
        continue;
      }
      log_warning("hub", "an upload of {} that was begun a day ago: {}", upload.key, aborted.to_string());
      if (aborted.code() == StatusCode::kNotFound) continue;  // its token was faster
    }
    used[std::string(owner_of(upload.key))] += upload.bytes;
  }
  std::map<std::string, OwnerLimits> limits;
  std::uint64_t removed = 0;
  std::string after;
  do {
    FLOTILLA_ASSIGN_OR_RETURN(const auto page, tree_.list("", after, kPageKeys, DirectoryTree::Depth::kAll));
    for (const auto& entry : page.entries) {
      const std::string owner(owner_of(entry.key));
      if (!limits.contains(owner)) {
        FLOTILLA_ASSIGN_OR_RETURN(limits[owner], tokens_.owner(owner));
      }
      const int keep_days = limits[owner].keep_days;
      if (keep_days > 0 && now - entry.modified > keep_days * kDay && ages(entry.key)) {
        const Status gone = tree_.remove(entry.key);
        if (gone.ok()) {
          ++removed;
          continue;
        }
        log_warning("hub", "{} is older than its owner keeps it: {}", entry.key, gone.to_string());
        if (gone.code() == StatusCode::kNotFound) continue;  // the learner was faster
      }
      used[owner] += entry.size;
    }
    after = page.next;
  } while (!after.empty());
  if (removed > 0) log_info("hub", "{} objects were older than their owners keep them", removed);
  owners_.set_used(used);
  counted_ = true;
  return ok_status();
}

}  // namespace flotilla
