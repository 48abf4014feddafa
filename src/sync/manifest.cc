#include "sync/manifest.h"

#include <algorithm>
#include <limits>

#include <fmt/format.h>

#include "base/thread_pool.h"
#include "sync/delta_frame.h"
#include "sync/signed_json.h"

namespace flotilla {
namespace {

constexpr const char* kKind = "manifest";
constexpr std::uint64_t kMax63 = std::numeric_limits<std::int64_t>::max();

std::uint64_t chunks_of(std::uint64_t size) { return (size + kChunkBytes - 1) / kChunkBytes; }

nlohmann::json object_to_json(const StoredObject& object) {
  nlohmann::json chunks = nlohmann::json::array();
  for (const Sha256Digest& chunk : object.chunks) chunks.push_back(chunk.to_hex());
  return {{"size", object.size}, {"sha256", object.sha256.to_hex()}, {"chunks", std::move(chunks)}};
}

StoredObject read_object(JsonFields& fields) {
  StoredObject object;
  object.size = fields.number("size", 1, kMax63);
  object.sha256 = fields.digest("sha256");
  const nlohmann::json& chunks = fields.member("chunks");
  if (!chunks.is_array() || chunks.size() != chunks_of(object.size)) {
    fields.fail("chunks", fmt::format("is not a list of {} digests", chunks_of(object.size)));
    return object;
  }
  for (const nlohmann::json& chunk : chunks) {
    auto digest = chunk.is_string() ? Sha256Digest::from_hex(chunk.get<std::string>()) : data_loss("not a string");
    if (!digest.ok()) {
      fields.fail("chunks", "has an entry that is not a SHA-256 in hex");
      return object;
    }
    object.chunks.push_back(*digest);
  }
  return object;
}

nlohmann::json delta_to_json(const DeltaObject& delta) {
  nlohmann::json json = object_to_json(delta.object);
  json["codec"] = delta.codec;
  json["base"] = delta.base.value();
  json["base_state"] = delta.base_state.to_hex();
  return json;
}

// Its base is below `end`.
Result<DeltaObject> read_delta(const nlohmann::json& json, const std::string& name, Version end) {
  JsonFields fields(json, name);
  if (const std::uint64_t codec = fields.number("codec", 1, kMax63); codec > kDeltaCodec) {
    return upgrade_needed("manifest: the delta's codec", std::to_string(codec), kDeltaCodec);
  }
  DeltaObject delta;
  delta.codec = static_cast<int>(fields.number("codec", 1, kDeltaCodec));
  delta.base = Version(fields.number("base", 0, kMax63));
  delta.base_state = fields.digest("base_state");
  delta.object = read_object(fields);
  if (delta.base >= end) fields.fail("base", fmt::format("is not below {}", end.value()));
  FLOTILLA_RETURN_IF_ERROR(fields.finish().with_context("manifest"));
  return delta;
}

}  // namespace

StoredObject describe_object(ByteSpan bytes) {
  StoredObject object{bytes.size(), sha256(bytes), {}};
  for (std::uint64_t at = 0; at < bytes.size(); at += kChunkBytes) {
    object.chunks.push_back(sha256(bytes.subspan(at, std::min(kChunkBytes, bytes.size() - at))));
  }
  return object;
}

std::vector<std::size_t> wrong_chunks(const StoredObject& object, ByteSpan bytes, int threads,
                                      const std::stop_token& stop) {
  FLOTILLA_CHECK(bytes.size() == object.size);
  const std::size_t chunks = object.chunks.size();
  std::vector<std::uint8_t> right(chunks);
  ThreadPool pool(static_cast<int>(std::clamp<std::size_t>(chunks, 1, static_cast<std::size_t>(threads))));
  pool.run(static_cast<std::int64_t>(chunks), [&](std::int64_t chunk, int) {
    if (stop.stop_requested()) return;
    const auto i = static_cast<std::size_t>(chunk);
    const std::size_t begin = i * kChunkBytes;
    right[i] =
        sha256(bytes.subspan(begin, std::min<std::size_t>(kChunkBytes, bytes.size() - begin))) == object.chunks[i];
  });
  std::vector<std::size_t> wrong;
  for (std::size_t i = 0; i < chunks; ++i) {
    if (right[i] == 0) wrong.push_back(i);
  }
  return wrong;
}

std::string manifest_to_json(const Manifest& manifest, const SigningKey& key) {
  nlohmann::json body = {
      {"manifest_format", manifest.history ? manifest.format : 1},
      {"run", manifest.run},
      {"version", manifest.version.value()},
      {"generation", manifest.generation.value()},
      {"state", manifest.state.to_hex()},
      {"changed", static_cast<std::uint64_t>(manifest.changed)},
      {"total", static_cast<std::uint64_t>(manifest.total)},
      {"optimizer_step", manifest.optimizer_step},
      {"time_ms", static_cast<std::uint64_t>(manifest.time.count())},
  };
  if (manifest.history) body["history"] = manifest.history->to_hex();
  if (manifest.delta) {
    body["delta"] = delta_to_json(*manifest.delta);
  }
  for (const DeltaObject& skip : manifest.skips) body["skips"].push_back(delta_to_json(skip));
  if (manifest.anchor) body["anchor"] = object_to_json(*manifest.anchor);
  return sign_json(kKind, body, key);
}

Result<Manifest> manifest_from_json(std::string_view text, const PublicKey& learner) {
  if (text.size() > kManifestBytesMax) {
    return data_loss(fmt::format("manifest has {} bytes; at most {}", text.size(), kManifestBytesMax));
  }
  FLOTILLA_ASSIGN_OR_RETURN(
      const SignedJson document,
      open_signed_json(kKind, text, learner, "manifest_format", kManifestFormat).with_context("manifest"));

  JsonFields fields(document.body);
  Manifest manifest;
  const std::uint64_t format = fields.number("manifest_format", 1, kManifestFormat);
  manifest.format = static_cast<int>(format);
  manifest.run = fields.text("run", 512);
  manifest.version = Version(fields.number("version", 0, kMax63));
  manifest.generation = Generation(fields.number("generation", 1, kMax63));
  manifest.state = fields.digest("state");
  if (format > 1) manifest.history = fields.digest("history");
  manifest.total = static_cast<std::int64_t>(fields.number("total", 0, kMax63));
  manifest.changed = static_cast<std::int64_t>(fields.number("changed", 0, static_cast<std::uint64_t>(manifest.total)));
  manifest.optimizer_step = fields.number("optimizer_step", 0, kMax63);
  manifest.time = std::chrono::milliseconds(fields.number("time_ms", 0, kMax63));
  if (fields.has("delta")) {
    FLOTILLA_ASSIGN_OR_RETURN(manifest.delta, read_delta(fields.member("delta"), "delta.", manifest.version));
  } else if (manifest.changed != 0) {
    fields.fail("changed", "is not 0, although there is no delta");
  }
  if (format > 2 && fields.has("skips")) {
    const nlohmann::json& skips = fields.member("skips");
    if (!manifest.delta || !skips.is_array() || skips.empty() || skips.size() > kSkipsMax) {
      return data_loss(fmt::format("manifest: field skips: is not a list of 1 to {} beside a delta", kSkipsMax));
    }
    // From the last one, each lower than the one before.
    manifest.skips.resize(skips.size());
    Version end = manifest.delta->base;
    for (std::size_t i = skips.size(); i-- > 0; end = manifest.skips[i].base) {
      FLOTILLA_ASSIGN_OR_RETURN(manifest.skips[i], read_delta(skips[i], fmt::format("skips[{}].", i), end));
    }
  }
  if (fields.has("anchor")) {
    JsonFields anchor(fields.member("anchor"), "anchor.");
    manifest.anchor = read_object(anchor);
    FLOTILLA_RETURN_IF_ERROR(anchor.finish().with_context("manifest"));
  }
  FLOTILLA_RETURN_IF_ERROR(fields.finish().with_context("manifest"));
  if (!manifest.delta && !manifest.anchor) return data_loss("manifest: neither a delta nor an anchor");
  return manifest;
}

}  // namespace flotilla
