#pragma once

#include <string_view>

#include "base/bytes.h"
#include "base/status.h"
#include "rollout/group.h"

namespace flotilla {

inline constexpr int kGroupFormat = 2;

std::string_view episode_end_name(EpisodeEnd end);  // "done", "turn_limit", "token_limit", "context"

// A group as a safetensors file (docs/formats/group.md): four tensors and, in the metadata, a JSON header with
// everything else. The group passes check_group(); then the same group gives the same bytes, and parse_group gives it
// back.
Bytes write_group(const Group& group);

// Strict: what is returned passes check_group(), its digest fits, and write_group() of it is `bytes` again, so that any
// prefix, changed bit or trailing byte is data_loss. Another format number is failed_precondition: another program
// wrote it, which has to be upgraded, or this one.
Result<Group> parse_group(ByteSpan bytes);

}  // namespace flotilla
