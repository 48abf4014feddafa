#include "rollout/group.h"

#include <algorithm>
#include <bit>
#include <charconv>

#include "base/philox.h"

namespace flotilla {
namespace {

constexpr std::uint32_t kFeistelRounds = 8;

// A permutation of [0, 2^(2 * half_bits)): 1 <= half_bits <= 32.
std::uint64_t feistel(std::uint64_t seed, int half_bits, std::uint64_t value) {
  const std::uint64_t mask = (std::uint64_t{1} << half_bits) - 1;
  auto left = static_cast<std::uint32_t>(value >> half_bits);
  auto right = static_cast<std::uint32_t>(value & mask);
  for (std::uint32_t round = 0; round < kFeistelRounds; ++round) {
    const auto words = philox4x32({right, round, static_cast<std::uint32_t>(half_bits), 0},
                                  {static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)});
    const auto next = static_cast<std::uint32_t>((left ^ words[0]) & mask);
    left = right;
    right = next;
  }
  return (std::uint64_t{left} << half_bits) | right;
}

std::uint64_t first_bytes_as_number(const Sha256Digest& digest) {
  std::uint64_t number = 0;
  for (int i = 0; i < 8; ++i) number = (number << 8) | digest.bytes[i];
  return number;
}

}  // namespace

std::string_view span_context_name(SpanContext context) { return context == SpanContext::kNew ? "new" : "kept"; }

Version Group::oldest_version() const {
  FLOTILLA_CHECK(!episodes.empty());
  Version oldest = episodes.front().spans.front().version;
  for (const Episode& episode : episodes) {
    for (const VersionSpan& span : episode.spans) oldest = std::min(oldest, span.version);
  }
  return oldest;
}

GroupId group_id(const GroupIdentity& identity) {
  Sha256 hash;
  hash.update_framed("flotilla group");
  hash.update_framed(identity.run);
  hash.update_framed(split_name(identity.split));
  hash.update_value(identity.task);
  hash.update_value(identity.attempt);
  hash.update_framed(identity.worker.value());
  hash.update_value(identity.counter);
  return GroupId(hash.finish().to_hex().substr(0, 32));
}

std::uint64_t sample_group(const GroupId& group) {
  const std::string digits = group.value().substr(0, 16);
  std::uint64_t number = 0;
  std::from_chars(digits.data(), digits.data() + digits.size(), number, 16);
  return number;
}

std::uint64_t permuted(std::uint64_t key, std::uint64_t place, std::uint64_t size) {
  FLOTILLA_CHECK(place < size);
  const auto half_bits = std::max(1, (static_cast<int>(std::bit_width(size - 1)) + 1) / 2);
  do {
    place = feistel(key, half_bits, place);
  } while (place >= size);
  return place;
}

std::uint64_t assigned_task(std::uint64_t run_seed, const WorkerId& worker, std::uint64_t counter,
                            std::uint64_t tasks) {
  FLOTILLA_CHECK(tasks > 0);
  Sha256 hash;
  hash.update_framed("flotilla start");
  hash.update_value(run_seed);
  hash.update_framed(worker.value());
  const std::uint64_t start = first_bytes_as_number(hash.finish()) % tasks;
  const std::uint64_t steps = counter % tasks;
  return permuted(run_seed, start >= tasks - steps ? start - (tasks - steps) : start + steps, tasks);
}

}  // namespace flotilla
