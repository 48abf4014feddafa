/* Completes a text with a model, and checks the exactness that the engine promises: scoring what was generated gives the
 * log-probabilities that it was drawn with, bit for bit.
 *
 *   cc complete.c $(pkg-config --cflags --libs flotilla) -o complete
 *   ./complete MODEL "Once upon a time" [tokens [seed]]
 *
 * MODEL is a GGUF file or a Hugging Face folder. The text goes to standard output, the token ids to standard error. */
#include <flotilla.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Ends the program when a call failed. */
static void check(flotilla_status status) {
  if (status == FLOTILLA_OK) return;
  fprintf(stderr, "complete: %s: %s\n", flotilla_status_name(status), flotilla_error_message());
  exit(1);
}

static void* allocate(size_t size) {
  void* memory = malloc(size > 0 ? size : 1);
  if (memory == NULL) {
    fprintf(stderr, "complete: out of memory\n");
    exit(1);
  }
  return memory;
}

struct output {
  const flotilla_model* model;
  flotilla_token* tokens;
  float* logprobs;
  size_t count;
};

/* Prints each token as it comes. Terminals put together the bytes of a character that two tokens share. */
static int on_token(const flotilla_sample_result* sampled, void* user) {
  struct output* output = user;
  char text[256];
  size_t size = 0;
  check(flotilla_decode(output->model, &sampled->token, 1, 0, text, sizeof text, &size));
  fwrite(text, 1, size, stdout);
  fflush(stdout);
  output->tokens[output->count] = sampled->token;
  output->logprobs[output->count] = sampled->logprob;
  ++output->count;
  return 0;
}

int main(int argc, char** argv) {
  flotilla_model* model = NULL;
  flotilla_engine* engine = NULL;
  flotilla_model_info info = FLOTILLA_MODEL_INFO_INIT;
  flotilla_engine_options options = FLOTILLA_ENGINE_OPTIONS_INIT;
  flotilla_sampling sampling = FLOTILLA_SAMPLING_INIT;
  flotilla_sequence sequence, again;
  flotilla_token* prompt;
  float* scored;
  struct output output;
  size_t count = 0, i;
  int64_t bytes = 0;
  int limit;

  if (argc < 3) {
    fprintf(stderr, "usage: complete MODEL TEXT [tokens [seed]]\n");
    return 2;
  }
  if (flotilla_abi_version() != FLOTILLA_ABI_VERSION) {
    fprintf(stderr, "complete: compiled for ABI %d, the library has %d\n", FLOTILLA_ABI_VERSION, flotilla_abi_version());
    return 1;
  }
  limit = argc > 3 ? atoi(argv[3]) : 32;
  if (limit < 1) {
    fprintf(stderr, "complete: %s tokens, expected at least 1\n", argv[3]);
    return 2;
  }
  sampling.seed = argc > 4 ? strtoull(argv[4], NULL, 10) : 1;

  check(flotilla_model_load(argv[1], &model));
  check(flotilla_model_get_info(model, &info));
  check(flotilla_encode(model, argv[2], strlen(argv[2]), 0, NULL, 0, &count));
  prompt = allocate(count * sizeof *prompt);
  check(flotilla_encode(model, argv[2], strlen(argv[2]), 0, prompt, count, &count));

  options.room = 2 * ((int64_t)count + limit + 16);
  check(flotilla_memory_needed(model, &options, &bytes));
  fprintf(stderr, "flotilla %s, arithmetic %d: %.1f million parameters, the engine takes %.0f MB\n", flotilla_version(),
          flotilla_arithmetic(), (double)info.parameters / 1e6, (double)bytes / 1e6);
  check(flotilla_engine_create(model, &options, &engine));
  check(flotilla_model_release_weights(model));

  check(flotilla_open(engine, &sequence));
  check(flotilla_append(engine, sequence, prompt, count));
  check(flotilla_fork(engine, sequence, &again));

  output.model = model;
  output.tokens = allocate((size_t)limit * sizeof *output.tokens);
  output.logprobs = allocate((size_t)limit * sizeof *output.logprobs);
  output.count = 0;
  printf("%s", argv[2]);
  check(flotilla_generate(engine, sequence, &sampling, limit, &info.end, info.end >= 0 ? 1 : 0, on_token, &output, NULL));
  printf("\n");

  scored = allocate((size_t)limit * sizeof *scored);
  check(flotilla_score(engine, again, output.tokens, output.count, &sampling, scored));
  fprintf(stderr, "tokens:");
  for (i = 0; i < output.count; ++i) fprintf(stderr, " %d", (int)output.tokens[i]);
  fprintf(stderr, "\n");
  if (memcmp(scored, output.logprobs, output.count * sizeof *scored) != 0) {
    fprintf(stderr, "complete: the scores differ from the log-probabilities of the generation\n");
    return 1;
  }

  free(scored);
  free(output.logprobs);
  free(output.tokens);
  free(prompt);
  check(flotilla_engine_free(engine));
  flotilla_model_free(model);
  return 0;
}
