#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "rollout/group.h"

namespace flotilla {

// Which version computed and wrote what of one episode while it is decoded: its spans so far. Pure.
class SpanHistory {
 public:
  // The episode's context is computed anew with this version from here on: it begins, or its keys and values were given
  // up.
  void begin_anew(Version version, const Sha256Digest& state);

  // Another version takes over while the first `computed` tokens are computed and stay as they are. False, and nothing
  // is changed, when spans cannot say so because no token was sampled yet in this context: begin_anew() then.
  bool keep(std::int32_t computed, Version version, const Sha256Digest& state);

  // The token at `position` was sampled. Positions rise.
  void sampled(std::int32_t position);

  // The spans of an episode of `size` tokens, whose last one was sampled.
  std::vector<VersionSpan> finish(std::int32_t size) &&;

 private:
  std::vector<VersionSpan> spans_;    // without ends
  std::optional<VersionSpan> fresh_;  // begins with the next token that is sampled
  std::int32_t sampled_ = 0;          // one past the last sampled token
};

}  // namespace flotilla
