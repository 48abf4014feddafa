#include "sync/run_spec.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include <fmt/format.h>

#include "model/grid.h"
#include "sync/signed_json.h"

namespace flotilla {
namespace {

Status check_run_prefix(std::string_view run) {
  if (!check_key(run).ok() || std::count(run.begin(), run.end(), '/') != 1) {
    return invalid_argument(fmt::format("run '{}': expected OWNER/RUN in the characters A-Z a-z 0-9 . _ -", run));
  }
  return ok_status();
}

constexpr const char* kKind = "run";
constexpr int kAttempts = 3;

// The double that is written as the float is: 0.7, not 0.699999988079071.
double shortest_double(float value) {
  const double shortest = std::strtod(fmt::format("{}", value).c_str(), nullptr);
  return static_cast<float>(shortest) == value ? shortest : double{value};
}

Result<PublicKey> key_of(const nlohmann::json& body) {
  const auto field = body.find("learner_key");
  const auto bytes = field != body.end() && field->is_string() ? from_hex(field->get<std::string>()) : Bytes();
  PublicKey key;
  if (!bytes.ok() || bytes->size() != key.size()) return data_loss("field learner_key is not a key of 32 bytes in hex");
  std::copy(bytes->begin(), bytes->end(), key.begin());
  return key;
}

Result<RunSpec> parse(const nlohmann::json& body, const PublicKey& key) {
  JsonFields fields(body);
  const auto whole = [&](const char* name, std::uint64_t smallest, std::int64_t largest) {
    return fields.number(name, smallest, static_cast<std::uint64_t>(largest));
  };
  RunSpec spec;
  spec.hub_format = static_cast<int>(whole("hub_format", kHubFormat, kHubFormat));
  spec.arithmetic = static_cast<int>(whole("arithmetic", 1, kRunArithmetic));
  spec.scale_group = static_cast<int>(whole("scale_group", kScaleGroup, kScaleGroup));
  spec.run = fields.text("run", 512);
  if (const Status status = check_run_prefix(spec.run); !status.ok()) fields.fail("run", "is not OWNER/RUN");
  spec.seed = fields.number("seed", 0, std::numeric_limits<std::uint64_t>::max());
  spec.model_config = fields.digest("model_config");
  spec.tokenizer = fields.digest("tokenizer");
  spec.environment = fields.digest("environment");
  spec.environment_name = fields.text("environment_name", 64);
  if (spec.environment_name.find('/') != std::string::npos || !check_key(spec.environment_name).ok()) {
    fields.fail("environment_name", "is not a name of [A-Za-z0-9._-]");
  }
  spec.environment_digest = fields.digest("environment_digest");
  spec.group_size = static_cast<std::int32_t>(whole("group_size", 1, 65536));
  spec.temperature = static_cast<float>(fields.real("temperature"));
  if (!std::isfinite(spec.temperature) || spec.temperature < 0) fields.fail("temperature", "is not finite and >= 0");
  spec.top_k = static_cast<std::int32_t>(whole("top_k", 0, std::numeric_limits<std::int32_t>::max()));
  spec.top_p = static_cast<float>(fields.real("top_p"));
  if (!(spec.top_p > 0 && spec.top_p <= 1)) fields.fail("top_p", "is not in (0, 1]");
  if (fields.has("swap")) {
    const auto name = std::ranges::find(enum_names<WeightSwap>, fields.text("swap", 16));
    spec.swap = static_cast<WeightSwap>(name - enum_names<WeightSwap>.begin());
    if (spec.swap == WeightSwap::kDrain || name == enum_names<WeightSwap>.end()) {
      fields.fail("swap", "is not recompute or keep");
    }
  }
  if (fields.has("claims")) spec.claims = static_cast<std::int32_t>(whole("claims", 1, kClaimTasksMax));
  spec.learner_key = key;
  fields.text("learner_key", 64);
  FLOTILLA_RETURN_IF_ERROR(fields.finish());
  return spec;
}

}  // namespace

std::string run_spec_to_json(const RunSpec& spec, const SigningKey& key) {
  nlohmann::json body = {
      {"hub_format", spec.hub_format},
      {"arithmetic", spec.arithmetic},
      {"scale_group", spec.scale_group},
      {"run", spec.run},
      {"seed", spec.seed},
      {"model_config", spec.model_config.to_hex()},
      {"tokenizer", spec.tokenizer.to_hex()},
      {"environment", spec.environment.to_hex()},
      {"environment_name", spec.environment_name},
      {"environment_digest", spec.environment_digest.to_hex()},
      {"group_size", spec.group_size},
      {"temperature", shortest_double(spec.temperature)},
      {"top_k", spec.top_k},
      {"top_p", shortest_double(spec.top_p)},
      {"learner_key", hex(spec.learner_key)},
  };
  if (spec.swap != WeightSwap::kDrain) body["swap"] = enum_name(spec.swap);
  if (spec.claims > 0) body["claims"] = spec.claims;
  return sign_json(kKind, body, key);
}

Result<RunSpec> run_spec_from_json(std::string_view text) {
  if (text.size() > kRunSpecBytesMax) {
    return data_loss(fmt::format("run.json has {} bytes; at most {}", text.size(), kRunSpecBytesMax));
  }
  const auto checked = [&]() -> Result<RunSpec> {
    FLOTILLA_ASSIGN_OR_RETURN(const SignedJson document, open_signed_json(text));
    FLOTILLA_ASSIGN_OR_RETURN(const PublicKey key, key_of(document.body));
    FLOTILLA_RETURN_IF_ERROR(check_signed_json(kKind, document, key, "hub_format", kHubFormat));
    FLOTILLA_RETURN_IF_ERROR(check_known(document.body, "arithmetic", kRunArithmetic));
    FLOTILLA_RETURN_IF_ERROR(check_known(document.body, "scale_group", kScaleGroup));
    return parse(document.body, key);
  };
  return checked().with_context("run.json");
}

Status publish_run_spec(ObjectStore& store, const HubLayout& layout, const RunSpec& spec, const SigningKey& key) {
  FLOTILLA_RETURN_IF_ERROR(check_run_prefix(spec.run));
  if (spec.run != layout.prefix) {
    return invalid_argument(fmt::format("the spec of run '{}' for the hub prefix '{}'", spec.run, layout.prefix));
  }
  const std::string text = run_spec_to_json(spec, key);
  // What the program would refuse later is refused before it is frozen.
  FLOTILLA_RETURN_IF_ERROR(run_spec_from_json(text).status());

  Status status;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    status = store.put_if_absent(layout.run_spec(), as_bytes(text)).status();
    if (status.ok()) return status;
    if (status.code() == StatusCode::kUnavailable || status.code() == StatusCode::kDeadlineExceeded) continue;
    if (status.code() != StatusCode::kAlreadyExists) return status;
    const auto found = store.get_range(layout.run_spec(), 0, kRunSpecBytesMax + 1);
    if (!found.ok()) {
      status = found.status();
      continue;
    }
    if (as_text(*found) == text) return ok_status();
    return failed_precondition(
        fmt::format("'{}' exists and is not the spec of this run: the hub holds another run of this name, or the "
                    "configuration, model or key has changed",
                    layout.run_spec()));
  }
  return status;
}

Result<RunSpec> fetch_run_spec(ObjectStore& store, const HubLayout& layout, std::string_view expected_fingerprint) {
  FLOTILLA_ASSIGN_OR_RETURN(const Bytes bytes, store.get_range(layout.run_spec(), 0, kRunSpecBytesMax + 1));
  FLOTILLA_ASSIGN_OR_RETURN(RunSpec spec, run_spec_from_json(as_text(bytes)));
  if (spec.run != layout.prefix) {
    return failed_precondition(
        fmt::format("'{}' belongs to the run '{}', not to '{}'", layout.run_spec(), spec.run, layout.prefix));
  }
  if (!expected_fingerprint.empty() && fingerprint(spec.learner_key) != expected_fingerprint) {
    return permission_denied(fmt::format("run '{}': the learner's key has the fingerprint {}, expected {}", spec.run,
                                         fingerprint(spec.learner_key), expected_fingerprint));
  }
  return spec;
}

}  // namespace flotilla
