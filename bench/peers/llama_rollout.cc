// llama.cpp at the work of `flotilla bench rollout`, through its C API: prompts are computed once and copied to the
// sequences of their group, sequences of different lengths decode together and leave when they have ended, every token
// is sampled at temperature 1 over the whole vocabulary with its logprob.
//
//   llama_rollout MODEL THREADS SLOTS unified|streams
//
// At most SLOTS sequences run at a time; a group is admitted when it fits as a whole. The KV cache is one for all or
// one a sequence. The work is done twice; prints the second one's tokens a second.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

#include "llama.h"

namespace {

constexpr int kPrompts = 8, kSamples = 8, kPromptTokens = 128, kShortest = 32, kLongest = 96;
constexpr int kSearchBlock = 1024;

struct Sampled {
  llama_token token;
  float logprob;
};

// One exponential a token of the vocabulary; sums by block, so that the search reads one block only.
Sampled sample(const float* logits, int vocabulary, std::vector<float>& weights, double uniform) {
  float largest = logits[0];
#pragma omp simd reduction(max : largest)
  for (int i = 0; i < vocabulary; ++i) largest = std::max(largest, logits[i]);
  weights.resize(vocabulary);
  for (int i = 0; i < vocabulary; ++i) weights[i] = std::exp(logits[i] - largest);
  std::vector<double> blocks;
  double sum = 0;
  for (int begin = 0; begin < vocabulary; begin += kSearchBlock) {
    float block = 0;
    for (int i = begin; i < std::min(vocabulary, begin + kSearchBlock); ++i) block += weights[i];
    blocks.push_back(block);
    sum += block;
  }
  double left = uniform * sum;
  std::size_t block = 0;
  while (block + 1 < blocks.size() && left >= blocks[block]) left -= blocks[block++];
  int token = static_cast<int>(block) * kSearchBlock;
  const int end = std::min(vocabulary, token + kSearchBlock);
  while (token + 1 < end && left >= weights[token]) left -= weights[token++];
  return {token, logits[token] - largest - static_cast<float>(std::log(sum))};
}

struct Running {
  llama_pos position;
  llama_token last;
  int left;
};

void add(llama_batch& batch, llama_token token, llama_pos position, llama_seq_id sequence, bool wants_logits) {
  const int i = batch.n_tokens++;
  batch.token[i] = token;
  batch.pos[i] = position;
  batch.n_seq_id[i] = 1;
  batch.seq_id[i][0] = sequence;
  batch.logits[i] = wants_logits;
}

void require(bool good, const char* what) {
  if (good) return;
  std::fprintf(stderr, "llama_rollout: %s\n", what);
  std::exit(1);
}

}  // namespace

int main(int argc, char** argv) {
  require(argc == 5, "expected MODEL THREADS SLOTS unified|streams");
  const bool unified = std::strcmp(argv[4], "unified") == 0;
  const int threads = std::atoi(argv[2]), slots = std::atoi(argv[3]);
  require(threads > 0 && slots >= kSamples, "expected a thread or more, and slots for a group");
  llama_log_set([](ggml_log_level, const char*, void*) {}, nullptr);
  llama_backend_init();
  llama_model* model = llama_model_load_from_file(argv[1], llama_model_default_params());
  require(model != nullptr, "the model cannot be read");
  llama_context_params params = llama_context_default_params();
  // Each stream holds whole sequences of its own.
  params.n_ctx = unified ? kPrompts * kPromptTokens + slots * kLongest + 256 : (slots + 1) * (kPromptTokens + kLongest);
  params.n_batch = 2048;
  params.n_ubatch = 512;
  params.n_seq_max = slots + 1;
  params.n_threads = params.n_threads_batch = threads;
  params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_ENABLED;
  params.kv_unified = unified;
  llama_context* context = llama_init_from_model(model, params);
  require(context != nullptr, "no context");
  llama_memory_t memory = llama_get_memory(context);
  const int vocabulary = llama_vocab_n_tokens(llama_model_get_vocab(model));
  llama_batch batch = llama_batch_init(2048, 0, 1);

  for (const bool counts : {false, true}) {
    std::mt19937_64 random(3);
    std::uniform_real_distribution<double> uniform;
    const llama_seq_id root = slots;
    std::vector<Running> running;  // sequence i is llama.cpp's i: streams are to be neighbours
    double logprobs = 0;
    int generated = 0, next_prompt = 0;
    const auto begin = std::chrono::steady_clock::now();
    while (next_prompt < kPrompts || !running.empty()) {
      while (next_prompt < kPrompts && static_cast<int>(running.size()) + kSamples <= slots) {
        batch.n_tokens = 0;
        llama_token last = 0;
        for (int i = 0; i < kPromptTokens; ++i) {
          last = static_cast<llama_token>(random() % vocabulary);
          if (i + 1 < kPromptTokens) add(batch, last, i, root, false);
        }
        require(llama_decode(context, batch) == 0, "a prompt cannot be decoded");
        for (int i = 0; i < kSamples; ++i) {
          llama_memory_seq_cp(memory, root, static_cast<llama_seq_id>(running.size()), -1, -1);
          const int number = next_prompt * kSamples + i;
          running.push_back({kPromptTokens - 1, last, kShortest + number * 37 % (kLongest - kShortest + 1)});
        }
        llama_memory_seq_rm(memory, root, -1, -1);
        ++next_prompt;
      }
      batch.n_tokens = 0;
      const int count = static_cast<int>(running.size());
      for (int i = 0; i < count; ++i) add(batch, running[i].last, running[i].position, i, true);
      require(llama_decode(context, batch) == 0, "tokens cannot be decoded");
      std::vector<double> uniforms(running.size());
      for (double& value : uniforms) value = uniform(random);
      std::vector<const float*> logits(running.size());
      for (int i = 0; i < count; ++i) logits[i] = llama_get_logits_ith(context, i);
      std::vector<Sampled> sampled(running.size());
#pragma omp parallel for num_threads(threads)
      for (int i = 0; i < count; ++i) {
        thread_local std::vector<float> weights;
        sampled[i] = sample(logits[i], vocabulary, weights, uniforms[i]);
      }
      for (int i = 0; i < count; ++i) {
        logprobs += sampled[i].logprob;
        running[i].last = sampled[i].token;
        ++running[i].position;
        --running[i].left;
        ++generated;
      }
      // The last sequence moves to the place of one that has ended.
      for (std::size_t i = 0; i < running.size();) {
        if (running[i].left > 0) {
          ++i;
          continue;
        }
        const auto here = static_cast<llama_seq_id>(i), last = static_cast<llama_seq_id>(running.size() - 1);
        llama_memory_seq_rm(memory, here, -1, -1);
        if (here != last) {
          llama_memory_seq_cp(memory, last, here, -1, -1);
          llama_memory_seq_rm(memory, last, -1, -1);
          running[i] = running.back();
        }
        running.pop_back();
      }
    }
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    if (!counts) continue;
    std::printf("%.3f tokens/s, %d tokens, mean logprob %.4f\n", generated / seconds, generated, logprobs / generated);
  }
}
