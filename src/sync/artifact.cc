#include <fmt/format.h>

#include "sync/store_access.h"
#include "sync/subscriber.h"

namespace flotilla {

Result<Sha256Digest> put_artifact(ObjectStore& store, const HubLayout& layout, ByteSpan bytes) {
  const Sha256Digest digest = sha256(bytes);
  const std::string key = layout.artifact(digest);
  const Status status = create_verified(store, key, bytes);
  if (status.ok()) return digest;
  if (status.code() != StatusCode::kAlreadyExists) return status;
  // The name is the content: what is there is the torn write of one who wanted to put the same bytes.
  FLOTILLA_RETURN_IF_ERROR(store.put(key, bytes).status());
  FLOTILLA_RETURN_IF_ERROR(get_artifact(store, layout, digest).status());
  return digest;
}

Result<Bytes> get_artifact(ObjectStore& store, const HubLayout& layout, const Sha256Digest& digest) {
  const std::string key = layout.artifact(digest);
  Sha256Digest found;
  for (int attempt = 0; attempt < 2; ++attempt) {
    FLOTILLA_ASSIGN_OR_RETURN(Object object, store.get(key));
    found = sha256(object.bytes);
    if (found == digest) return std::move(object.bytes);
  }
  return data_loss(fmt::format("artifact '{}' has the SHA-256 {}", key, found.to_hex()));
}

}  // namespace flotilla
