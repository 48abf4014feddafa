#pragma once

#include <cstdint>
#include <string>

#include "base/hashing.h"
#include "base/status.h"
#include "sync/signing.h"

namespace flotilla {

inline constexpr int kHubFormat = 1;

// run.json: what never changes in a run and what a worker must agree with before it does anything. Signed by the learner;
// the fingerprint of its key is part of the command that a person copies to join.
struct RunSpec {
  int hub_format = kHubFormat;
  int arithmetic = 1;
  int scale_group = 64;
  std::string run;                  // "<owner>/<run>"
  std::uint64_t seed = 0;
  Sha256Digest model_config;        // artifact: config.json
  Sha256Digest tokenizer;           // artifact: tokenizer.json
  Sha256Digest environment;         // artifact: documents and tasks
  std::string environment_name;
  Sha256Digest environment_digest;  // Environment::digest()
  std::int32_t group_size = 8;
  float temperature = 1;
  std::int32_t top_k = 0;
  float top_p = 1;
  PublicKey learner_key{};
};

// JSON with a signature over its canonical text. Parsing checks the signature against the key inside, and every field's
// type and range; an unknown format or arithmetic number says that the program has to be upgraded.
std::string run_spec_to_json(const RunSpec& spec, const SigningKey& key);
Result<RunSpec> run_spec_from_json(std::string_view text);

}  // namespace flotilla
