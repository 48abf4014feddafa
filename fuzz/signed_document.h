#pragma once

#include <memory>
#include <string_view>

#include "model/strict_json.h"
#include "sync/signed_json.h"

// Calls read(text) with the input as it is and, because no mutation survives a signature, with the input as the body of
// a document that is signed here. `edit` may change the body first.
template <typename Edit, typename Read>
void fuzz_signed_document(const char* kind, flotilla::ByteSpan bytes, const flotilla::SigningKey& key, Edit edit,
                          Read read) {
  read(std::string(flotilla::as_text(bytes)));
  auto body = flotilla::parse_strict_json(flotilla::as_text(bytes));
  if (!body.ok() || !body->is_object() || body->empty()) return;
  edit(*body);
  read(flotilla::sign_json(kind, *body, key));
}

inline const flotilla::SigningKey& fuzz_key() {
  static const auto key = flotilla::SigningKey::generate().value();
  return *key;
}
