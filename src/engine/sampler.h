#pragma once

#include <cstdint>
#include <vector>

#include "engine/engine.h"
#include "engine/kernels.h"

namespace flotilla {

// Room that one thread needs to read distributions; kept between calls, so that a decode loop does not allocate.
struct SamplerScratch {
  std::vector<float> cut;
  std::vector<std::uint64_t> weights;
  std::vector<TokenId> order;
};

// Logits are padded to this many entries.
inline std::int64_t padded_vocabulary(std::int64_t vocabulary) { return (vocabulary + kLanes - 1) / kLanes * kLanes; }

// Ok, or invalid_argument that names the parameter.
Status check_sampling(const SamplingParams& sampling);

// The 64 random bits of one sampled token.
std::uint64_t sample_bits(const SampleKey& key);

// Reads one distribution; docs/design/arithmetic.md defines every step. logits has padded_vocabulary(vocabulary)
// entries, of which those past the vocabulary are overwritten. False when a logit is NaN or infinite.
bool read_distribution(const KernelTable& kernels, float* logits, std::int64_t vocabulary, const Readout& readout,
                       SamplerScratch& scratch, ReadoutResult* result);

// out[i] = logprob of token i at temperature 1.
bool all_logprobs(const KernelTable& kernels, float* logits, std::int64_t vocabulary, float* out);

}  // namespace flotilla
