#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/hashing.h"
#include "base/ids.h"
#include "base/status.h"
#include "sync/signing.h"

namespace flotilla {

enum class RunState { kRunning, kPaused, kFinished };
std::string_view run_state_name(RunState state);

// The one object that moves: which version is newest, and what the learner wants. Only the learner writes it.
struct Head {
  Version version;
  Sha256Digest manifest;   // of the manifest's bytes
  Generation generation;   // of the learner that wrote it: an older learner must stop
  RunState state = RunState::kRunning;
  std::int64_t wanted = 0;  // groups that the learner can use at present; 0: wait
};

std::string head_to_json(const Head& head, const SigningKey& key);
Result<Head> head_from_json(std::string_view text, const PublicKey& learner);

}  // namespace flotilla
