#pragma once

#include <cstdint>
#include <string>

#include "base/hashing.h"
#include "base/status.h"
#include "config/weight_swap.h"
#include "store/object_store.h"
#include "sync/hub_layout.h"
#include "sync/signing.h"

namespace flotilla {

inline constexpr int kHubFormat = 1;
inline constexpr int kRunArithmetic = 1;            // the newest arithmetic number that this program knows
inline constexpr std::int32_t kClaimTasksMax = 64;  // in one block: a bit each in a status
inline constexpr std::size_t kRunSpecBytesMax = 65536;

// run.json: what never changes in a run and what a worker must agree with before it does anything. Signed by the
// learner; the fingerprint of its key is part of the command that a person copies to join.
struct RunSpec {
  int hub_format = kHubFormat;
  int arithmetic = kRunArithmetic;
  int scale_group = 64;
  std::string run;  // "<owner>/<run>"
  std::uint64_t seed = 0;
  Sha256Digest model_config;  // artifact: config.json
  Sha256Digest tokenizer;     // artifact: tokenizer.json
  Sha256Digest environment;   // artifact: documents and tasks
  std::string environment_name;
  Sha256Digest environment_digest;  // Environment::digest()
  std::int32_t group_size = 8;      // 1..65536
  float temperature = 1;            // >= 0, finite
  std::int32_t top_k = 0;           // >= 0
  float top_p = 1;                  // in (0, 1]
  WeightSwap swap = WeightSwap::kDrain;
  std::int32_t claims = 0;  // tasks in a block that a worker claims, 1..64; 0: workers claim nothing
  PublicKey learner_key{};

  bool operator==(const RunSpec&) const = default;
};

// JSON with a signature over its canonical text. The run's name is "<owner>/<run>" in the characters of keys. Parsing
// checks the signature against the key inside, and every field's type and range; an unknown format or arithmetic number
// says that the program has to be upgraded.
std::string run_spec_to_json(const RunSpec& spec, const SigningKey& key);
Result<RunSpec> run_spec_from_json(std::string_view text);

// Writes run.json, or accepts the one that is there when it is the same; failed_precondition when it is another run's.
Status publish_run_spec(ObjectStore& store, const HubLayout& layout, const RunSpec& spec, const SigningKey& key);
// Reads run.json. failed_precondition when it belongs to another run; permission_denied when its learner is not the one
// whose fingerprint is expected (any when empty).
Result<RunSpec> fetch_run_spec(ObjectStore& store, const HubLayout& layout, std::string_view expected_fingerprint);

}  // namespace flotilla
