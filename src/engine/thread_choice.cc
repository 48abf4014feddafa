#include "engine/thread_choice.h"

#include <algorithm>
#include <bit>

namespace flotilla {
namespace {

// A trial takes three passes, so one pass in fifty tries something else.
constexpr int kPassesBetweenTrials = 150;
// With few rows the memory decides, and fewer threads may well do: such passes try that at once.
constexpr std::int64_t kFewRows = 8;
constexpr int kPassesBeforeFirstTrial = 3;
// What a candidate must gain to be taken: less is noise.
constexpr double kGain = 0.97;

}  // namespace

double ThreadChoice::Candidate::cost() const {
  std::array<double, kSamples> sorted = costs;
  std::ranges::sort(sorted);
  return sorted[kSamples / 2];
}

ThreadChoice::ThreadChoice(int most) {
  for (std::size_t i = 0; i < kBuckets; ++i) {
    Bucket& bucket = buckets_[i];
    for (int threads = 1; threads < most; threads *= 2) bucket.candidates.push_back({.threads = threads});
    bucket.candidates.push_back({.threads = most});
    bucket.best = bucket.current = bucket.candidates.size() - 1;
    plan_trial(bucket, i < bucket_of(kFewRows) ? kPassesBeforeFirstTrial : kPassesBetweenTrials);
  }
}

std::size_t ThreadChoice::bucket_of(std::int64_t rows) {
  return std::min<std::size_t>(std::bit_width(static_cast<std::uint64_t>(rows)) - 1, kBuckets - 1);
}

int ThreadChoice::threads(std::int64_t rows) const {
  const Bucket& bucket = buckets_[bucket_of(rows)];
  return bucket.candidates[bucket.current].threads;
}

// The neighbours of the best one take turns.
void ThreadChoice::plan_trial(Bucket& bucket, int passes) {
  const std::size_t below = bucket.best == 0 ? bucket.best + 1 : bucket.best - 1;
  const std::size_t above = bucket.best + 1 < bucket.candidates.size() ? bucket.best + 1 : below;
  bucket.next_trial = bucket.next_trial == below ? above : below;
  bucket.until_trial = passes;
  bucket.current = bucket.best;
  bucket.candidates[bucket.best].passes = 0;
}

void ThreadChoice::add(std::int64_t rows, double cost) {
  Bucket& bucket = buckets_[bucket_of(rows)];
  if (bucket.candidates.size() == 1) return;
  Candidate& current = bucket.candidates[bucket.current];
  current.costs[static_cast<std::size_t>(current.passes++ % kSamples)] = cost;
  if (bucket.current == bucket.best) {
    if (current.passes < bucket.until_trial) return;
    bucket.current = bucket.next_trial;
    bucket.candidates[bucket.current].passes = 0;
  } else if (current.passes == kSamples) {
    const bool better = current.cost() < kGain * bucket.candidates[bucket.best].cost();
    if (better) bucket.best = bucket.current;
    plan_trial(bucket, better ? kPassesBeforeFirstTrial : kPassesBetweenTrials);
  }
}

}  // namespace flotilla
