#include "hub/multipart.h"

#include <dirent.h>
#include <fcntl.h>
#include <openssl/rand.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <memory>

#include <fmt/format.h>

namespace flotilla {
namespace {

constexpr const char* kUploadsFolder = "uploads";
constexpr const char* kAbout = "@about";
constexpr std::size_t kIdDigits = 32;
constexpr std::size_t kAboutMax = 1024;
constexpr std::uint64_t kPieceBytes = 256 << 10;

bool is_id(std::string_view id) {
  return id.size() == kIdDigits && id.find_first_not_of("0123456789abcdef") == id.npos;
}

Status no_upload() { return not_found("there is no such upload"); }

// "00012-<sha256>"
std::string part_name(int number, std::string_view etag) { return fmt::format("{:05}-{}", number, etag); }

std::optional<MultipartUploads::Known> read_part_name(std::string_view name) {
  constexpr std::size_t kNumberDigits = 5, kDigestDigits = 64;
  MultipartUploads::Known part;
  if (name.size() != kNumberDigits + 1 + kDigestDigits || name[kNumberDigits] != '-') return std::nullopt;
  const auto [end, failed] = std::from_chars(name.data(), name.data() + kNumberDigits, part.number);
  if (failed != std::errc{} || end != name.data() + kNumberDigits) return std::nullopt;
  part.etag = name.substr(kNumberDigits + 1);
  return part;
}

Result<std::vector<std::string>> names_in(int folder) {
  const int copy = ::openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (copy < 0) return errno_status(errno, "list the parts of an upload");
  const std::unique_ptr<DIR, int (*)(DIR*)> entries(::fdopendir(copy), &::closedir);
  if (!entries) {
    ::close(copy);
    return errno_status(errno, "list the parts of an upload");
  }
  std::vector<std::string> names;
  while (const dirent* entry = ::readdir(entries.get())) {
    const std::string_view name = entry->d_name;
    if (name != "." && name != "..") names.emplace_back(name);
  }
  return names;
}

// The key and the token that an upload is of.
Result<std::array<std::string, 2>> read_about(int folder) {
  FLOTILLA_ASSIGN_OR_RETURN(const OpenFile about, open_regular(folder, kAbout, "an upload"));
  if (about.size > kAboutMax) return data_loss("an upload says too much about itself");
  FLOTILLA_ASSIGN_OR_RETURN(const Bytes bytes, read_at(about.fd.get(), 0, about.size, "an upload"));
  const std::string_view text = as_text(bytes);
  const std::size_t end = text.find('\n');
  if (end == text.npos) return data_loss("an upload does not say whose it is");
  return std::array<std::string, 2>{std::string(text.substr(0, end)), std::string(text.substr(end + 1))};
}

}  // namespace

Status append_all(const OpenFile& source, int file, Sha256& hash, std::string_view where) {
  for (std::uint64_t offset = 0; offset < source.size; offset += kPieceBytes) {
    FLOTILLA_ASSIGN_OR_RETURN(const Bytes piece,
                              read_at(source.fd.get(), offset, std::min(kPieceBytes, source.size - offset), where));
    hash.update(piece);
    FLOTILLA_RETURN_IF_ERROR(append(file, piece, where));
  }
  return ok_status();
}

MultipartUploads::Part::~Part() {
  if (partial_.fd.valid() && !partial_.name.empty()) ::unlinkat(folder_.get(), partial_.name.c_str(), 0);
}

Result<FileDescriptor> MultipartUploads::folder(bool make) const {
  FLOTILLA_ASSIGN_OR_RETURN(const FileDescriptor own, tree_.open_own_folder("an upload"));
  return open_subfolder(own.get(), kUploadsFolder, make, "an upload");
}

Result<FileDescriptor> MultipartUploads::open_upload(std::string_view id) const {
  if (!is_id(id)) return no_upload();
  const auto uploads = folder(false);
  if (!uploads.ok()) return no_upload();
  auto upload = open_subfolder(uploads->get(), id, false, "an upload");
  if (!upload.ok()) return no_upload();
  return upload;
}

Result<std::string> MultipartUploads::start(std::string_view key, std::string_view token) {
  std::array<std::uint8_t, kIdDigits / 2> random{};
  if (RAND_bytes(random.data(), static_cast<int>(random.size())) != 1) return internal_error("no random bytes");
  std::string id = hex(random);
  FLOTILLA_ASSIGN_OR_RETURN(const FileDescriptor uploads, folder(true));
  FLOTILLA_ASSIGN_OR_RETURN(const FileDescriptor upload, open_subfolder(uploads.get(), id, true, "an upload"));
  FLOTILLA_ASSIGN_OR_RETURN(const PartialFile about, create_partial(upload.get(), "an upload"));
  FLOTILLA_RETURN_IF_ERROR(append(about.fd.get(), as_bytes(fmt::format("{}\n{}", key, token)), "an upload"));
  FLOTILLA_RETURN_IF_ERROR(sync_file(about.fd.get(), "an upload"));
  if (::renameat(upload.get(), about.name.c_str(), upload.get(), kAbout) != 0) {
    return errno_status(errno, "start an upload");
  }
  FLOTILLA_RETURN_IF_ERROR(sync_folder(upload.get(), "an upload"));
  return id;
}

Status MultipartUploads::check(std::string_view id, std::string_view key, std::string_view token) const {
  FLOTILLA_ASSIGN_OR_RETURN(const FileDescriptor upload, open_upload(id));
  const auto about = read_about(upload.get());
  if (!about.ok() || (*about)[0] != key || (*about)[1] != token) return no_upload();
  return ok_status();
}

Result<MultipartUploads::Part> MultipartUploads::begin_part(std::string_view id) const {
  Part part;
  FLOTILLA_ASSIGN_OR_RETURN(part.folder_, open_upload(id));
  FLOTILLA_ASSIGN_OR_RETURN(part.partial_, create_partial(part.folder_.get(), "a part"));
  return part;
}

Status MultipartUploads::finish_part(Part& part, int number, const Sha256Digest& digest) const {
  FLOTILLA_RETURN_IF_ERROR(sync_file(part.file(), "a part"));
  const std::string name = part_name(number, digest.to_hex());
  if (::renameat(part.folder_.get(), part.partial_.name.c_str(), part.folder_.get(), name.c_str()) != 0) {
    return errno == ENOENT ? no_upload() : errno_status(errno, "name a part");
  }
  part.partial_.name.clear();
  return sync_folder(part.folder_.get(), "a part");
}

Result<std::vector<MultipartUploads::Known>> MultipartUploads::parts(std::string_view id) const {
  FLOTILLA_ASSIGN_OR_RETURN(const FileDescriptor upload, open_upload(id));
  FLOTILLA_ASSIGN_OR_RETURN(const auto names, names_in(upload.get()));
  std::vector<Known> parts;
  for (const std::string& name : names) {
    auto part = read_part_name(name);
    struct stat info {};
    if (!part || ::fstatat(upload.get(), name.c_str(), &info, AT_SYMLINK_NOFOLLOW) != 0) continue;
    part->size = static_cast<std::uint64_t>(info.st_size);
    part->modified = info.st_mtime;
    parts.push_back(*std::move(part));
  }
  std::ranges::sort(parts, {}, [](const Known& part) { return std::pair(part.number, part.modified); });
  return parts;
}

Result<Sha256Digest> MultipartUploads::join(std::string_view id, const std::vector<CompletedPart>& parts,
                                            int file) const {
  FLOTILLA_ASSIGN_OR_RETURN(const FileDescriptor upload, open_upload(id));
  Sha256 hash;
  for (const CompletedPart& part : parts) {
    const bool is_digest =
        part.etag.size() == 64 && part.etag.find_first_not_of("0123456789abcdef") == std::string::npos;
    const auto source = is_digest ? open_regular(upload.get(), part_name(part.number, part.etag), "a part")
                                  : Result<OpenFile>(not_found("no digest"));
    if (!source.ok()) return invalid_argument(fmt::format("part {} with this tag is not there", part.number));
    FLOTILLA_RETURN_IF_ERROR(append_all(*source, file, hash, "a part"));
  }
  return hash.finish();
}

Status MultipartUploads::abort(std::string_view id) const {
  FLOTILLA_ASSIGN_OR_RETURN(const FileDescriptor upload, open_upload(id));
  FLOTILLA_ASSIGN_OR_RETURN(const auto names, names_in(upload.get()));
  for (const std::string& name : names) ::unlinkat(upload.get(), name.c_str(), 0);
  FLOTILLA_ASSIGN_OR_RETURN(const FileDescriptor uploads, folder(false));
  if (::unlinkat(uploads.get(), std::string(id).c_str(), AT_REMOVEDIR) != 0 && errno != ENOENT) {
    return errno_status(errno, "remove an upload");
  }
  return ok_status();
}

Result<std::vector<MultipartUploads::Open>> MultipartUploads::list() const {
  const auto uploads = folder(false);
  if (uploads.status().code() == StatusCode::kNotFound) return std::vector<Open>{};
  if (!uploads.ok()) return uploads.status();
  FLOTILLA_ASSIGN_OR_RETURN(const auto names, names_in(uploads->get()));
  std::vector<Open> found;
  for (const std::string& id : names) {
    const auto upload = open_upload(id);
    if (!upload.ok()) continue;
    Open open;
    open.id = id;
    struct stat info {};
    if (::fstat(upload->get(), &info) == 0) open.started = info.st_mtime;
    if (const auto about = read_about(upload->get()); about.ok()) {
      open.key = (*about)[0];
      open.token = (*about)[1];
    }
    if (const auto known = parts(id); known.ok()) {
      for (const Known& part : *known) open.bytes += part.size;
    }
    found.push_back(std::move(open));
  }
  return found;
}

}  // namespace flotilla
