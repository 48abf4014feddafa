#include "hub/tls_files.h"

#include <openssl/bio.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <memory>

#include <fmt/format.h>

#include "base/bytes.h"
#include "base/files.h"
#include "base/hashing.h"

namespace flotilla {
namespace {

namespace fs = std::filesystem;

constexpr long kValidSeconds = 10L * 365 * 24 * 3600;

struct Deleter {
  void operator()(EVP_PKEY* key) const { EVP_PKEY_free(key); }
  void operator()(X509* certificate) const { X509_free(certificate); }
  void operator()(BIO* bio) const { BIO_free(bio); }
  void operator()(X509_EXTENSION* extension) const { X509_EXTENSION_free(extension); }
};
template <typename T>
using Owned = std::unique_ptr<T, Deleter>;

Status failed(std::string_view what) { return internal_error(fmt::format("self-signed certificate: {} failed", what)); }

std::string written(BIO* bio) {
  char* data = nullptr;
  const long size = BIO_get_mem_data(bio, &data);
  return {data, static_cast<std::size_t>(size)};
}

std::string names() {
  std::string names = "DNS:localhost,IP:127.0.0.1,IP:::1";
  std::array<char, 256> host{};
  if (::gethostname(host.data(), host.size() - 1) == 0) {
    const std::string_view name = host.data();
    const bool plain = name.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-") ==
                       std::string_view::npos;
    if (!name.empty() && plain) names += fmt::format(",DNS:{}", name);
  }
  return names;
}

Result<Owned<X509>> make_certificate(EVP_PKEY* key) {
  Owned<X509> certificate(X509_new());
  std::array<std::uint8_t, 16> serial{};
  if (!certificate || RAND_bytes(serial.data(), static_cast<int>(serial.size())) != 1) return failed("a new one");
  serial[0] = (serial[0] & 0x7F) | 1;  // positive
  ASN1_INTEGER* number = X509_get_serialNumber(certificate.get());
  ASN1_STRING_set(number, serial.data(), static_cast<int>(serial.size()));
  X509_NAME* name = X509_get_subject_name(certificate.get());
  if (X509_set_version(certificate.get(), X509_VERSION_3) != 1 ||
      X509_gmtime_adj(X509_getm_notBefore(certificate.get()), -3600) == nullptr ||
      X509_gmtime_adj(X509_getm_notAfter(certificate.get()), kValidSeconds) == nullptr ||
      X509_set_pubkey(certificate.get(), key) != 1 ||
      X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC, reinterpret_cast<const unsigned char*>("flotilla hub"), -1,
                                 -1, 0) != 1 ||
      X509_set_issuer_name(certificate.get(), name) != 1) {
    return failed("filling it in");
  }
  X509V3_CTX context{};
  X509V3_set_ctx(&context, certificate.get(), certificate.get(), nullptr, nullptr, 0);
  const std::pair<int, std::string> extensions[] = {{NID_subject_alt_name, names()},
                                                    {NID_basic_constraints, "critical,CA:TRUE"},
                                                    {NID_subject_key_identifier, "hash"}};
  for (const auto& [kind, value] : extensions) {
    const Owned<X509_EXTENSION> extension(X509V3_EXT_conf_nid(nullptr, &context, kind, value.c_str()));
    if (!extension || X509_add_ext(certificate.get(), extension.get(), -1) != 1) return failed(value);
  }
  if (X509_sign(certificate.get(), key, EVP_sha256()) == 0) return failed("signing it");
  return certificate;
}

}  // namespace

Result<TlsFiles> self_signed_certificate(const fs::path& folder) {
  TlsFiles files{folder / "certificate.pem", folder / "certificate-key.pem"};
  std::error_code error;
  const bool has_key = fs::exists(files.key, error), has_certificate = fs::exists(files.certificate, error);
  if (has_key && has_certificate) return files;
  if (has_certificate) return invalid_argument(fmt::format("{} has no key beside it", files.certificate.string()));

  Owned<EVP_PKEY> key(EVP_EC_gen("P-256"));
  if (!key) return failed("a key");
  FLOTILLA_ASSIGN_OR_RETURN(const Owned<X509> certificate, make_certificate(key.get()));
  const Owned<BIO> key_text(BIO_new(BIO_s_mem())), certificate_text(BIO_new(BIO_s_mem()));
  if (!key_text || !certificate_text ||
      PEM_write_bio_PKCS8PrivateKey(key_text.get(), key.get(), nullptr, nullptr, 0, nullptr, nullptr) != 1 ||
      PEM_write_bio_X509(certificate_text.get(), certificate.get()) != 1) {
    return failed("writing it");
  }
  // The certificate last: with it both are there.
  const mode_t before = ::umask(077);
  Status saved = write_file_atomically(files.key, written(key_text.get()));
  ::umask(before);
  if (saved.ok()) saved = write_file_atomically(files.certificate, written(certificate_text.get()));
  if (!saved.ok()) return saved;
  return files;
}

Result<std::string> public_key_pin(const fs::path& certificate) {
  FLOTILLA_ASSIGN_OR_RETURN(const std::string text, read_text_file(certificate));
  const Owned<BIO> bio(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
  const Owned<X509> parsed(bio ? PEM_read_bio_X509(bio.get(), nullptr, nullptr, nullptr) : nullptr);
  unsigned char* der = nullptr;
  const int size = parsed ? i2d_X509_PUBKEY(X509_get_X509_PUBKEY(parsed.get()), &der) : -1;
  if (size < 0) return invalid_argument(fmt::format("{} is not a certificate in PEM form", certificate.string()));
  const Sha256Digest digest = sha256(ByteSpan(der, static_cast<std::size_t>(size)));
  OPENSSL_free(der);
  return "sha256//" + base64(digest.bytes);
}

}  // namespace flotilla
