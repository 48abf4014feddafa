#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/hashing.h"
#include "base/ids.h"
#include "base/status.h"
#include "config/weight_swap.h"
#include "engine/engine.h"
#include "env/environment.h"

namespace flotilla {

inline constexpr std::string_view kEpisodeUnit = "episodes";  // kind of the unit of work that a group is
inline constexpr float kLogprobSlack = 1e-4f;                 // a logprob is at most 0, up to rounding
inline constexpr int kApproximate = 0;  // GroupIdentity::arithmetic of a backend that is not exact

// Where the keys and values before a span come from.
enum class SpanContext : std::uint8_t {
  kNew,   // the span's version computed all of them
  kKept,  // those before token begin - 1 are what the span before has read and written
};

// Which version wrote the sampled tokens in [begin, end) of an episode. A token is sampled where its predecessor is
// computed: the version has computed the tokens [begin - 1, end - 1), and, in a new context, all before them.
struct VersionSpan {
  std::int32_t begin = 0;
  std::int32_t end = 0;
  Version version;
  Sha256Digest state;  // digest of that version
  SpanContext context = SpanContext::kNew;
};

enum class TokenSource : std::uint8_t { kPrompt = 0, kModel = 1, kEnvironment = 2 };

enum class EpisodeEnd : std::uint8_t {
  kDone,  // the environment ended it
  kTurnLimit,
  kTokenLimit,  // model tokens ran out: a truncated episode
  kContext,     // the model's context ran out: a truncated episode
};

// One attempt at a task. Ids are the truth; text is decoded from them, never encoded again. The prompt comes first,
// then model tokens, with the tokens of one observation (perhaps none) between two turns; the last token is the
// model's.
struct Episode {
  std::vector<TokenId> tokens;       // prompt, model and environment tokens in order
  std::vector<TokenSource> sources;  // of each token
  std::vector<float> logprobs;       // of each model token under the distribution sampled from; 0 elsewhere
  // Cover [prompt, size) without gaps. The first context is new; a new one begins at a model token. Versions rise from
  // span to span, and stay equal only where a new context takes the place of a kept one.
  std::vector<VersionSpan> spans;
  std::vector<std::int32_t> turns;  // index one past the last model token of each turn
  EpisodeEnd end = EpisodeEnd::kDone;
  double reward = 0;
  std::map<std::string, double> metrics;
};

// The unit of a group of episodes with everything that fixes its result.
struct GroupIdentity {
  std::string run;         // "<owner>/<run>"
  std::uint64_t seed = 0;  // of the run
  GroupId group;           // see group_id()
  OperatorId operator_id;
  WorkerId worker;
  std::uint64_t counter = 0;  // fixes the task: run_task()
  std::uint32_t attempt = 0;
  Split split = Split::kTrain;
  std::uint64_t task = 0;
  std::string backend;           // "cpu-avx2"; tells who to ask when something is odd, fixes nothing
  int arithmetic = kArithmetic;  // or kApproximate
  Sha256Digest tokenizer;
  Sha256Digest environment;  // rules, documents and ranking: Environment::digest()
  Sha256Digest corpus;       // the artifact
  SamplingParams sampling;
  std::string task_metadata;  // carried along and never read; at most 64 KiB
};

struct Group {
  GroupIdentity identity;
  std::int32_t prompt_tokens = 0;  // the same first tokens in every episode
  std::vector<Episode> episodes;

  // Oldest version that produced any token. The group has an episode.
  Version oldest_version() const;
};

std::string_view span_context_name(SpanContext context);  // "new", "kept"

// Everything that can be said about a group without a model, a tokenizer or an environment: names, ranges, lengths that
// agree, sources, turns and spans that tell the same story, finite numbers, one prompt, the id that follows from the
// assignment. data_loss names the episode and the field, observed against expected.
Status check_group(const Group& group);

// Whether versions changed within the group as the run has it: an honest worker's group never fails. invalid_argument.
Status check_swap(const Group& group, WeightSwap swap);

// Hex of the first 16 bytes of SHA-256 over run, split, task, attempt, worker and counter: fixed by the assignment, so
// that nobody can draw again for a luckier one.
GroupId group_id(const GroupIdentity& identity);
// SampleKey::group: the first 16 hex digits of the id as a number.
std::uint64_t sample_group(const GroupId& group);
// Where the key's permutation of [0, size) takes `place`: a Feistel network of 8 Philox rounds over the next even
// number of bits, applied again while the result lies outside (cycle walking: Black, Rogaway, "Ciphers with Arbitrary
// Finite Domains", CT-RSA 2002). place < size.
std::uint64_t permuted(std::uint64_t key, std::uint64_t place, std::uint64_t size);
// The task that a run without claims assigns to this worker's counter: all workers walk one permutation of [0, tasks),
// keyed by the run's seed, each from a start of its own, which follows from seed and worker. tasks > 0.
std::uint64_t assigned_task(std::uint64_t run_seed, const WorkerId& worker, std::uint64_t counter, std::uint64_t tasks);

}  // namespace flotilla
