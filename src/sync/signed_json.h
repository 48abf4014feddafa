#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include "base/hashing.h"
#include "base/status.h"
#include "sync/signing.h"

namespace flotilla {

// Signed JSON (docs/formats/signed-json.md). The body is a JSON object as canonical text: keys in byte order, no white
// space, one way to write each value. The document is the body with one more member at its end, "signature": base64 of
// the Ed25519 signature over "flotilla KIND\n" and the body. KIND keeps a head from passing for a manifest.
std::string sign_json(std::string_view kind, const nlohmann::json& body, const SigningKey& key);

// A document taken apart, its signature not yet checked.
struct SignedJson {
  nlohmann::json body;
  std::string text;  // of the body
  Signature signature{};
};

// What is read before anybody is known to have signed it.
inline constexpr std::size_t kUnsignedJsonBytesMax = 64 << 10;
// data_loss for anything that sign_json does not write, and above kUnsignedJsonBytesMax.
Result<SignedJson> open_signed_json(std::string_view text);
// For documents of a signer who is known: what he did not sign is not parsed. The errors of both functions here.
Result<SignedJson> open_signed_json(std::string_view kind, std::string_view text, const PublicKey& key,
                                    const char* format_field, int format);
// permission_denied when the key did not sign it as this kind; then, failed_precondition that tells to upgrade when
// `format_field` is a number above `format`. In this order, so that a damaged document is not taken for a newer
// one: every format, whatever else it changes, is signed in this way.
Status check_signed_json(std::string_view kind, const SignedJson& document, const PublicKey& key,
                         const char* format_field, int format);

// "WHAT is FOUND, this program knows KNOWN: upgrade flotilla": failed_precondition.
Status upgrade_needed(std::string_view what, std::string_view found, int known);
// upgrade_needed when the member is a whole number other than `known`. Missing and odd values are left to the parser.
Status check_known(const nlohmann::json& body, const char* name, int known);

// Reads the members of an object one by one. The first failure is kept and named; later reads give default values.
class JsonFields {
 public:
  // The object must outlive the reader.
  explicit JsonFields(const nlohmann::json& object, std::string prefix = {});

  bool has(const char* name) const { return object_.contains(name); }
  std::string text(const char* name, std::size_t longest);
  std::uint64_t number(const char* name, std::uint64_t smallest, std::uint64_t largest);
  double real(const char* name);
  Sha256Digest digest(const char* name);
  // The member itself; null when missing.
  const nlohmann::json& member(const char* name);
  void fail(const char* name, std::string_view why);

  // data_loss with the first failure, or with a member that nobody read.
  Status finish() const;

 private:
  const nlohmann::json& object_;
  std::string prefix_;
  std::set<std::string, std::less<>> read_;
  Status status_;
};

}  // namespace flotilla
