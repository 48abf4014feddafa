#include "sync/signing.h"

#include <fcntl.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include <fmt/format.h>

#include "base/files.h"
#include "base/hashing.h"

namespace flotilla {
namespace fs = std::filesystem;
namespace {

using KeyHandle = std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)>;
using BioHandle = std::unique_ptr<BIO, decltype(&BIO_free)>;
using ContextHandle = std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)>;

class Ed25519Key final : public SigningKey {
 public:
  // nullptr when the key is not an Ed25519 key.
  static std::shared_ptr<const SigningKey> wrap(KeyHandle handle) {
    if (!handle || EVP_PKEY_get_id(handle.get()) != EVP_PKEY_ED25519) return nullptr;
    PublicKey public_key;
    std::size_t size = public_key.size();
    if (EVP_PKEY_get_raw_public_key(handle.get(), public_key.data(), &size) != 1 || size != public_key.size()) {
      return nullptr;
    }
    return std::shared_ptr<const SigningKey>(new Ed25519Key(std::move(handle), public_key));
  }

  const PublicKey& public_key() const override { return public_key_; }

  Signature sign(ByteSpan message) const override {
    const ContextHandle context(EVP_MD_CTX_new(), &EVP_MD_CTX_free);
    Signature signature;
    std::size_t size = signature.size();
    FLOTILLA_CHECK(context && EVP_DigestSignInit(context.get(), nullptr, nullptr, nullptr, handle_.get()) == 1);
    FLOTILLA_CHECK(EVP_DigestSign(context.get(), signature.data(), &size, message.data(), message.size()) == 1);
    FLOTILLA_CHECK(size == signature.size());
    return signature;
  }

  Result<std::string> pem() const {
    const BioHandle bio(BIO_new(BIO_s_mem()), &BIO_free);
    if (!bio || PEM_write_bio_PrivateKey(bio.get(), handle_.get(), nullptr, nullptr, 0, nullptr, nullptr) != 1) {
      return internal_error("OpenSSL cannot write the key");
    }
    char* data = nullptr;
    const long size = BIO_get_mem_data(bio.get(), &data);
    return std::string(data, static_cast<std::size_t>(size));
  }

 private:
  Ed25519Key(KeyHandle handle, PublicKey public_key) : handle_(std::move(handle)), public_key_(public_key) {}
  KeyHandle handle_;
  PublicKey public_key_;
};

int no_passphrase(char*, int, int, void*) { return -1; }

Result<std::shared_ptr<const SigningKey>> load(const fs::path& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) return errno_status(errno, fmt::format("key file '{}'", path.string()));
  if ((info.st_mode & 077) != 0) {
    return permission_denied(fmt::format("key file '{}' has mode {:03o}: others can read it; run chmod 600 on it",
                                         path.string(), info.st_mode & 0777));
  }
  FLOTILLA_ASSIGN_OR_RETURN(const std::string text, read_text_file(path));
  const BioHandle bio(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())), &BIO_free);
  FLOTILLA_CHECK(bio != nullptr);
  auto key = Ed25519Key::wrap({PEM_read_bio_PrivateKey(bio.get(), nullptr, &no_passphrase, nullptr), &EVP_PKEY_free});
  ERR_clear_error();
  if (!key) return data_loss(fmt::format("key file '{}' does not hold an Ed25519 private key in PEM", path.string()));
  return key;
}

// Writes a new file that only the owner can read, whole or not at all; already_exists leaves the one that is there.
Status create_private_file(const fs::path& path, std::string_view text) {
  const fs::path folder = path.has_parent_path() ? path.parent_path() : fs::path(".");
  std::error_code error;
  if (fs::create_directories(folder, error)) fs::permissions(folder, fs::perms::owner_all, error);
  if (error) return errno_status(error.value(), fmt::format("make folder '{}'", folder.string()));

  std::string pattern = path.string() + ".XXXXXX";
  const int fd = ::mkstemp(pattern.data());  // mode 0600
  if (fd < 0) return errno_status(errno, fmt::format("create key file '{}'", path.string()));
  const bool written = ::write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size()) && ::fsync(fd) == 0;
  int failure = written ? 0 : errno;
  ::close(fd);
  // link, not rename: of two processes that make a key at once, both must end with the same one.
  if (failure == 0 && ::link(pattern.c_str(), path.c_str()) != 0) failure = errno;
  ::unlink(pattern.c_str());
  return failure == 0 ? ok_status() : errno_status(failure, fmt::format("write key file '{}'", path.string()));
}

}  // namespace

std::string fingerprint(const PublicKey& key) { return "sha256:" + sha256(ByteSpan(key)).to_hex(); }

Result<std::shared_ptr<const SigningKey>> SigningKey::generate() {
  auto key = Ed25519Key::wrap({EVP_PKEY_Q_keygen(nullptr, nullptr, "ED25519"), &EVP_PKEY_free});
  if (!key) return internal_error("OpenSSL cannot make an Ed25519 key");
  return key;
}

Result<std::shared_ptr<const SigningKey>> SigningKey::load_or_create(const fs::path& path) {
  auto loaded = load(path);
  if (loaded.status().code() != StatusCode::kNotFound) return loaded;
  FLOTILLA_ASSIGN_OR_RETURN(const auto key, generate());
  FLOTILLA_ASSIGN_OR_RETURN(const std::string text, static_cast<const Ed25519Key&>(*key).pem());
  const Status status = create_private_file(path, text);
  if (!status.ok() && status.code() != StatusCode::kAlreadyExists) return status;
  return load(path);
}

Status verify_signature(const PublicKey& key, ByteSpan message, const Signature& signature) {
  const KeyHandle handle(EVP_PKEY_new_raw_public_key(EVP_PKEY_ED25519, nullptr, key.data(), key.size()),
                         &EVP_PKEY_free);
  const ContextHandle context(EVP_MD_CTX_new(), &EVP_MD_CTX_free);
  const bool valid =
      handle && context && EVP_DigestVerifyInit(context.get(), nullptr, nullptr, nullptr, handle.get()) == 1 &&
      EVP_DigestVerify(context.get(), signature.data(), signature.size(), message.data(), message.size()) == 1;
  ERR_clear_error();
  if (!valid) return permission_denied(fmt::format("the signature is not by the key {}", fingerprint(key)));
  return ok_status();
}

}  // namespace flotilla
