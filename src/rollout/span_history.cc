#include "rollout/span_history.h"

namespace flotilla {

void SpanHistory::begin_anew(Version version, const Sha256Digest& state) {
  // No token depends on what these have computed, and it is gone now.
  while (!spans_.empty() && spans_.back().begin >= sampled_) spans_.pop_back();
  fresh_.reset();
  // The same version computes the same keys and values again.
  const bool goes_on =
      !spans_.empty() && spans_.back().version == version && spans_.back().context == SpanContext::kNew;
  if (!goes_on) fresh_ = {.begin = 0, .end = 0, .version = version, .state = state, .context = SpanContext::kNew};
}

bool SpanHistory::keep(std::int32_t computed, Version version, const Sha256Digest& state) {
  // The second: a context that is being computed again has not come to its last sampled token.
  if (fresh_ || spans_.empty() || computed + 1 < sampled_) return false;
  if (spans_.back().begin > computed) spans_.pop_back();  // that version has computed nothing
  spans_.push_back({computed + 1, 0, version, state, SpanContext::kKept});
  return true;
}

void SpanHistory::sampled(std::int32_t position) {
  if (fresh_) {
    fresh_->begin = position;
    spans_.push_back(*fresh_);
    fresh_.reset();
  }
  sampled_ = position + 1;
}

std::vector<VersionSpan> SpanHistory::finish(std::int32_t size) && {
  for (std::size_t i = 0; i < spans_.size(); ++i) spans_[i].end = i + 1 < spans_.size() ? spans_[i + 1].begin : size;
  return std::move(spans_);
}

}  // namespace flotilla
