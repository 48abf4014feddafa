#include "sync/head.h"

#include <algorithm>
#include <limits>

#include <fmt/format.h>

#include "sync/signed_json.h"

namespace flotilla {
namespace {

constexpr const char* kKind = "head";
constexpr RunState kStates[] = {RunState::kRunning, RunState::kPaused, RunState::kFinished};
constexpr std::uint64_t kMax63 = std::numeric_limits<std::int64_t>::max();

}  // namespace

std::string_view run_state_name(RunState state) {
  switch (state) {
    case RunState::kRunning: return "running";
    case RunState::kPaused: return "paused";
    case RunState::kFinished: return "finished";
  }
  return "unknown";
}

std::string head_to_json(const Head& head, const SigningKey& key) {
  FLOTILLA_CHECK(head.wanted >= 0);
  const nlohmann::json body = {
      {"head_format", kHeadFormat},
      {"run", head.run},
      {"version", head.version.value()},
      {"manifest", head.manifest.to_hex()},
      {"generation", head.generation.value()},
      {"writer", head.writer},
      {"sequence", head.sequence},
      {"state", run_state_name(head.state)},
      {"wanted", static_cast<std::uint64_t>(head.wanted)},
  };
  return sign_json(kKind, body, key);
}

Result<Head> head_from_json(std::string_view text, const PublicKey& learner) {
  if (text.size() > kHeadBytesMax) {
    return data_loss(fmt::format("head has {} bytes; at most {}", text.size(), kHeadBytesMax));
  }
  FLOTILLA_ASSIGN_OR_RETURN(const SignedJson document,
                            open_signed_json(kKind, text, learner, "head_format", kHeadFormat).with_context("head"));

  JsonFields fields(document.body);
  Head head;
  fields.number("head_format", kHeadFormat, kHeadFormat);
  head.run = fields.text("run", 512);
  head.version = Version(fields.number("version", 0, kMax63));
  head.manifest = fields.digest("manifest");
  head.generation = Generation(fields.number("generation", 1, kMax63));
  head.writer = fields.text("writer", 16);
  head.sequence = fields.number("sequence", 1, kMax63);
  const std::string state = fields.text("state", 16);
  const auto known =
      std::find_if(std::begin(kStates), std::end(kStates), [&](RunState s) { return run_state_name(s) == state; });
  if (known == std::end(kStates)) {
    fields.fail("state", "is not running, paused or finished");
  } else {
    head.state = *known;
  }
  head.wanted = static_cast<std::int64_t>(fields.number("wanted", 0, kMax63));
  FLOTILLA_RETURN_IF_ERROR(fields.finish().with_context("head"));
  return head;
}

}  // namespace flotilla
