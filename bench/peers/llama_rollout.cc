// llama.cpp at the work of `flotilla bench rollout`, through its C API: prompts are computed once and copied to the
// sequences of their group, sequences of different lengths decode together and leave when they have ended, every token
// is sampled at temperature 1 over the whole vocabulary with its logprob.
//
//   llama_rollout MODEL THREADS SLOTS
//
// At most SLOTS sequences run at a time; a group is admitted when it fits as a whole. Prints tokens a second.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
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
  const float largest = *std::max_element(logits, logits + vocabulary);
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
  llama_seq_id slot;
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
  require(argc == 4, "expected MODEL THREADS SLOTS");
  const int threads = std::atoi(argv[2]), slots = std::atoi(argv[3]);
  require(threads > 0 && slots >= kSamples, "expected a thread or more, and slots for a group");
  llama_log_set([](ggml_log_level, const char*, void*) {}, nullptr);
  llama_backend_init();
  llama_model* model = llama_model_load_from_file(argv[1], llama_model_default_params());
  require(model != nullptr, "the model cannot be read");
  llama_context_params params = llama_context_default_params();
  params.n_ctx = kPrompts * kPromptTokens + slots * kLongest + 256;
  params.n_batch = 2048;
  params.n_ubatch = 512;
  params.n_seq_max = slots + 1;
  params.n_threads = params.n_threads_batch = threads;
  params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_ENABLED;
  params.kv_unified = true;
  llama_context* context = llama_init_from_model(model, params);
  require(context != nullptr, "no context");
  llama_memory_t memory = llama_get_memory(context);
  const int vocabulary = llama_vocab_n_tokens(llama_model_get_vocab(model));
  llama_batch batch = llama_batch_init(2048, 0, 1);

  std::mt19937_64 random(3);
  std::uniform_real_distribution<double> uniform;
  std::vector<llama_seq_id> free_slots;
  for (int i = slots - 1; i >= 0; --i) free_slots.push_back(i);
  const llama_seq_id root = slots;
  std::vector<Running> running;
  std::vector<float> weights;
  double logprobs = 0;
  int generated = 0, next_prompt = 0;
  const auto begin = std::chrono::steady_clock::now();
  while (next_prompt < kPrompts || !running.empty()) {
    while (next_prompt < kPrompts && static_cast<int>(free_slots.size()) >= kSamples) {
      batch.n_tokens = 0;
      llama_token last = 0;
      for (int i = 0; i < kPromptTokens; ++i) {
        last = static_cast<llama_token>(random() % vocabulary);
        if (i + 1 < kPromptTokens) add(batch, last, i, root, false);
      }
      require(llama_decode(context, batch) == 0, "a prompt cannot be decoded");
      for (int i = 0; i < kSamples; ++i) {
        const llama_seq_id slot = free_slots.back();
        free_slots.pop_back();
        llama_memory_seq_cp(memory, root, slot, -1, -1);
        const int number = next_prompt * kSamples + i;
        running.push_back({slot, kPromptTokens - 1, last, kShortest + number * 37 % (kLongest - kShortest + 1)});
      }
      llama_memory_seq_rm(memory, root, -1, -1);
      ++next_prompt;
    }
    batch.n_tokens = 0;
    for (const Running& sequence : running) add(batch, sequence.last, sequence.position, sequence.slot, true);
    require(llama_decode(context, batch) == 0, "tokens cannot be decoded");
    for (std::size_t i = 0; i < running.size(); ++i) {
      const Sampled sampled = sample(llama_get_logits_ith(context, static_cast<int>(i)), vocabulary, weights, uniform(random));
      logprobs += sampled.logprob;
      running[i].last = sampled.token;
      ++running[i].position;
      ++generated;
      if (--running[i].left == 0) {
        llama_memory_seq_rm(memory, running[i].slot, -1, -1);
        free_slots.push_back(running[i].slot);
      }
    }
    running.erase(std::remove_if(running.begin(), running.end(), [](const Running& r) { return r.left == 0; }), running.end());
  }
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  std::printf("%.3f tokens/s, %d tokens, mean logprob %.4f\n", generated / seconds, generated, logprobs / generated);
}
