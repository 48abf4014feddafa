#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/hashing.h"
#include "base/ids.h"
#include "base/status.h"
#include "sync/signing.h"

namespace flotilla {

inline constexpr int kHeadFormat = 1;
inline constexpr std::size_t kHeadBytesMax = 4096;

enum class RunState { kRunning, kPaused, kFinished };
std::string_view run_state_name(RunState state);

// The one object that moves: which version is newest, and what the learner wants. Only the learner writes it.
struct Head {
  std::string run;  // "<owner>/<run>": a head of another run is no head of this one
  Version version;
  Sha256Digest manifest;       // of the manifest's bytes
  Generation generation;       // of the learner that wrote it: an older learner must stop
  std::string writer;          // 16 hex digits, drawn by each learner: tells two learners of one generation apart
  std::uint64_t sequence = 0;  // counts the writes of head over all learners: which of two heads is newer
  RunState state = RunState::kRunning;
  std::int64_t wanted = 0;  // groups that the learner can use at present; 0: wait

  bool operator==(const Head&) const = default;
};

std::string head_to_json(const Head& head, const SigningKey& key);
// permission_denied when another key signed it; failed_precondition when its format is newer than this program;
// data_loss for anything else.
Result<Head> head_from_json(std::string_view text, const PublicKey& learner);

}  // namespace flotilla
