#include <filesystem>
#include <memory>

#include <fmt/format.h>

#include "store/directory_tree.h"

namespace flotilla {
namespace {

class DirectoryStore final : public ObjectStore {
 public:
  explicit DirectoryStore(std::string root) : tree_(std::move(root)) {}

  Result<Object> get(std::string_view key) override {
    FLOTILLA_ASSIGN_OR_RETURN(const OpenFile file, tree_.open(key));
    FLOTILLA_ASSIGN_OR_RETURN(Bytes bytes, read_at(file.fd.get(), 0, file.size, tree_.where(key)));
    ETag etag = content_tag(bytes);
    return Object{std::move(bytes), std::move(etag)};
  }

  Result<Bytes> get_range(std::string_view key, std::uint64_t offset, std::uint64_t length) override {
    FLOTILLA_ASSIGN_OR_RETURN(const OpenFile file, tree_.open(key));
    if (offset > file.size) {
      return invalid_argument(fmt::format("'{}': offset {} is past the end, {}", key, offset, file.size));
    }
    return read_at(file.fd.get(), offset, std::min(length, file.size - offset), tree_.where(key));
  }

  Result<ObjectInfo> head(std::string_view key) override {
    FLOTILLA_ASSIGN_OR_RETURN(Object object, get(key));
    return ObjectInfo{std::string(key), object.bytes.size(), std::move(object.etag)};
  }

  Result<ETag> put_if_absent(std::string_view key, ByteSpan bytes) override {
    FLOTILLA_ASSIGN_OR_RETURN(const DirectoryTree::Upload upload, written(key, bytes));
    FLOTILLA_RETURN_IF_ERROR(tree_.create(upload, key));
    return content_tag(bytes);
  }

  Result<ETag> put_if_match(std::string_view key, ByteSpan bytes, const ETag& expected) override {
    return replace(key, bytes, [&](const OpenFile* current) -> Status {
      const std::string where = tree_.where(key);
      if (current == nullptr) return failed_precondition(fmt::format("'{}' does not exist", where));
      FLOTILLA_ASSIGN_OR_RETURN(const Bytes present, read_at(current->fd.get(), 0, current->size, where));
      const ETag tag = content_tag(present);
      if (tag == expected) return ok_status();
      return failed_precondition(fmt::format("'{}' has the tag {}; expected {}", where, tag, expected));
    });
  }

  Result<ETag> put(std::string_view key, ByteSpan bytes) override {
    return replace(key, bytes, [](const OpenFile*) { return ok_status(); });
  }

  Result<ListPage> list(std::string_view prefix, std::string_view after, std::size_t limit) override {
    FLOTILLA_ASSIGN_OR_RETURN(DirectoryTree::Page found, tree_.list(prefix, after, limit, DirectoryTree::Depth::kAll));
    ListPage page;
    page.next = std::move(found.next);
    for (DirectoryTree::Entry& entry : found.entries) {
      page.objects.push_back({std::move(entry.key), entry.size, {}, std::chrono::seconds(entry.modified)});
    }
    return page;
  }

  Status remove(std::string_view key) override { return tree_.remove(key); }

 private:
  Result<DirectoryTree::Upload> written(std::string_view key, ByteSpan bytes) const {
    FLOTILLA_ASSIGN_OR_RETURN(DirectoryTree::Upload upload, tree_.begin(key));
    FLOTILLA_RETURN_IF_ERROR(append(upload.file(), bytes, tree_.where(key)));
    return upload;
  }

  Result<ETag> replace(std::string_view key, ByteSpan bytes, const DirectoryTree::Allowed& allowed) const {
    FLOTILLA_ASSIGN_OR_RETURN(const DirectoryTree::Upload upload, written(key, bytes));
    FLOTILLA_RETURN_IF_ERROR(tree_.replace(upload, key, allowed));
    return content_tag(bytes);
  }

  const DirectoryTree tree_;
};

}  // namespace

Result<std::unique_ptr<ObjectStore>> open_directory_store(const std::string& root, bool create) {
  namespace fs = std::filesystem;
  std::error_code error;
  if (create) {
    fs::create_directories(root, error);
    if (error) return errno_status(error.value(), fmt::format("make hub folder '{}'", root));
  }
  const fs::path path = fs::absolute(root, error);
  const fs::file_status status = fs::status(path, error);
  if (status.type() == fs::file_type::not_found) return not_found(fmt::format("hub folder '{}' does not exist", root));
  if (error) return errno_status(error.value(), fmt::format("hub folder '{}'", root));
  if (status.type() != fs::file_type::directory) return invalid_argument(fmt::format("hub '{}' is not a folder", root));
  return std::unique_ptr<ObjectStore>(std::make_unique<DirectoryStore>(path.lexically_normal().string()));
}

}  // namespace flotilla
