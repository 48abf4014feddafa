/* Flotilla's exact inference engine as a C library: link with -lflotilla. docs/embedding.md explains it by example.
 *
 * The same weights, tokens, seed and parameters give the same tokens and log-probabilities, bit for bit, on every
 * machine, with every number of threads, and however the work is batched.
 *
 * Errors: every function that can fail returns a flotilla_status; anything but FLOTILLA_OK leaves a sentence in
 * flotilla_error_message() and has done nothing else, unless the function says so. Null pointers, handles that are not
 * open, numbers out of range and malformed files are errors, never crashes. A pointer to an object that was freed is
 * not detected.
 *
 * Threads: a flotilla_model may be used by any number of threads at once. A flotilla_engine does one call at a time:
 * a second one meanwhile, from another thread or from inside a callback, is FLOTILLA_FAILED_PRECONDITION. Error
 * messages belong to the thread.
 *
 * Structures begin with their size, which FLOTILLA_..._INIT fills in with all defaults: always start from it.
 */
#ifndef FLOTILLA_H
#define FLOTILLA_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Changes when a program that was compiled with an older header could no longer run; then so does the library's name.
 */
#define FLOTILLA_ABI_VERSION 1
int flotilla_abi_version(void);
/* "0.1.0" */
const char* flotilla_version(void);
/* The number of the function that the engine computes. Equal numbers give equal bits. */
int flotilla_arithmetic(void);

typedef enum flotilla_status {
  FLOTILLA_OK = 0,
  FLOTILLA_INVALID_ARGUMENT = 1,
  FLOTILLA_NOT_FOUND = 2,           /* a file, a handle, or a token that is not there */
  FLOTILLA_FAILED_PRECONDITION = 3, /* the call does not fit the state of the object */
  FLOTILLA_DATA_LOSS = 4,           /* a file is corrupt, or values became NaN */
  FLOTILLA_RESOURCE_EXHAUSTED = 5,  /* memory, room for tokens, or the caller's buffer */
  FLOTILLA_PERMISSION_DENIED = 6,
  FLOTILLA_UNAVAILABLE = 7, /* the system failed to read a file; it may work later */
  FLOTILLA_INTERNAL = 8     /* a bug */
} flotilla_status;

/* What the last failed call of this thread says; "" when none failed. Valid until this thread's next failed call. */
const char* flotilla_error_message(void);
/* "invalid_argument"; "unknown" for a number that is no status. */
const char* flotilla_status_name(flotilla_status status);

typedef int32_t flotilla_token;

/* ---- Models ---- */

/* Weights on the int8 grid, and the tokenizer. Never changes. */
typedef struct flotilla_model flotilla_model;

/* Reads a GGUF file, or a Hugging Face folder (config.json, model.safetensors, tokenizer.json), whose weights are
 * rounded to the grid. Takes about five bytes a parameter while it runs, and one afterwards. */
flotilla_status flotilla_model_load(const char* path, flotilla_model** model);
/* Null is allowed. Engines made from the model go on. */
void flotilla_model_free(flotilla_model* model);
/* Frees the weights and keeps the tokenizer, for when all engines are made: they have weights of their own. */
flotilla_status flotilla_model_release_weights(flotilla_model* model);

typedef struct flotilla_model_info {
  size_t struct_size;
  int64_t parameters;
  int32_t context;            /* most tokens of a sequence */
  int32_t vocabulary;         /* ids are below it */
  int32_t tokens;             /* ids below it have text; those from here to `vocabulary` pad the model and have none */
  flotilla_token end;         /* the tokenizer's end-of-sequence token, -1: none */
  flotilla_token end_of_turn; /* what ends a turn of a chat, -1: none */
} flotilla_model_info;
#define FLOTILLA_MODEL_INFO_INIT \
  { sizeof(flotilla_model_info), 0, 0, 0, 0, -1, -1 }
flotilla_status flotilla_model_get_info(const flotilla_model* model, flotilla_model_info* info);

/* ---- Text ----
 * Results of unknown length go to a buffer of the caller: *count (or *size) is set to what the result needs. With a
 * capacity of 0 that is all; a capacity above 0 that is too small is FLOTILLA_RESOURCE_EXHAUSTED, with nothing written.
 */

/* Tokens of `size` bytes of text. With parse_special, special tokens in it become their ids; without, they are text:
 * use that for what users and tools wrote. */
flotilla_status flotilla_encode(const flotilla_model* model, const char* text, size_t size, int parse_special,
                                flotilla_token* tokens, size_t capacity, size_t* count);
/* Bytes of tokens, not ended by a zero. A token can hold a part of a UTF-8 character. Special tokens have no text
 * unless keep_special; ids without text (see flotilla_model_info) never have. */
flotilla_status flotilla_decode(const flotilla_model* model, const flotilla_token* tokens, size_t count,
                                int keep_special, char* text, size_t capacity, size_t* size);

typedef struct flotilla_message {
  const char* role; /* "system", "user" or "assistant" */
  const char* content;
} flotilla_message;
/* A chat in ChatML, with the opening of the assistant's turn if asked for. FLOTILLA_NOT_FOUND when the model's
 * vocabulary has no ChatML tokens. */
flotilla_status flotilla_encode_chat(const flotilla_model* model, const flotilla_message* messages,
                                     size_t message_count, int open_assistant_turn, flotilla_token* tokens,
                                     size_t capacity, size_t* count);

/* ---- Engines ---- */

typedef struct flotilla_engine flotilla_engine;

typedef struct flotilla_engine_options {
  size_t struct_size;
  int32_t threads; /* 0: one for each processor */
  int64_t room;    /* tokens that all sequences together can hold; counted in blocks of 16, shared ones once */
} flotilla_engine_options;
#define FLOTILLA_ENGINE_OPTIONS_INIT \
  { sizeof(flotilla_engine_options), 0, 4096 }

/* Bytes that an engine of these options will take. */
flotilla_status flotilla_memory_needed(const flotilla_model* model, const flotilla_engine_options* options,
                                       int64_t* bytes);
flotilla_status flotilla_engine_create(const flotilla_model* model, const flotilla_engine_options* options,
                                       flotilla_engine** engine);
/* Closes all sequences. Null is allowed. FLOTILLA_FAILED_PRECONDITION during another call; then nothing is freed. */
flotilla_status flotilla_engine_free(flotilla_engine* engine);

typedef struct flotilla_usage {
  size_t struct_size;
  int64_t room;      /* in tokens, as are the next two */
  int64_t room_used; /* whole blocks */
  int64_t computed;  /* since the engine was made */
  int64_t sequences;
} flotilla_usage;
#define FLOTILLA_USAGE_INIT \
  { sizeof(flotilla_usage), 0, 0, 0, 0 }
flotilla_status flotilla_get_usage(flotilla_engine* engine, flotilla_usage* usage);

/* ---- Sequences ----
 * A growing list of tokens. A number is never given out twice by one engine. */
typedef int64_t flotilla_sequence;

flotilla_status flotilla_open(flotilla_engine* engine, flotilla_sequence* sequence);
/* A sequence with the same tokens, which share their room until one of the two grows. */
flotilla_status flotilla_fork(flotilla_engine* engine, flotilla_sequence source, flotilla_sequence* sequence);
flotilla_status flotilla_close(flotilla_engine* engine, flotilla_sequence sequence);
flotilla_status flotilla_length(flotilla_engine* engine, flotilla_sequence sequence, int32_t* length);

/* Adds tokens to the end. The last one is computed when something is asked about what follows it, which the caller
 * does not notice. FLOTILLA_RESOURCE_EXHAUSTED when there is no room. No tokens at all are allowed. */
flotilla_status flotilla_append(flotilla_engine* engine, flotilla_sequence sequence, const flotilla_token* tokens,
                                size_t count);

typedef struct flotilla_sampling {
  size_t struct_size;
  float temperature; /* 0: the most likely token, the lowest id of equal ones, with its logprob at temperature 1 */
  int32_t top_k;     /* 0: all */
  float top_p;       /* in (0, 1] */
  uint64_t seed;     /* seed, stream and the token's index in its sequence name the random number of each token, */
  uint64_t stream;   /* so that equal ones give equal tokens: samples of one prompt need streams of their own */
} flotilla_sampling;
#define FLOTILLA_SAMPLING_INIT \
  { sizeof(flotilla_sampling), 1.0f, 0, 1.0f, 0, 0 }

typedef struct flotilla_sample_result {
  flotilla_token token;
  float logprob; /* under the distribution it was drawn from: temperature applied, top-k and top-p renormalised */
} flotilla_sample_result;

/* Draws one token for each of `count` sequences, all different and none empty, in one batch, and appends it. samplings
 * and results have `count` elements. The weights are read once for the whole batch: many sequences together are much
 * faster than one after the other. */
flotilla_status flotilla_sample(flotilla_engine* engine, const flotilla_sequence* sequences,
                                const flotilla_sampling* samplings, size_t count, flotilla_sample_result* results);

/* Called with each token as it is drawn; anything but 0 ends the generation. */
typedef int (*flotilla_on_token)(const flotilla_sample_result* sampled, void* user);

typedef enum flotilla_end {
  FLOTILLA_END_LIMIT = 0, /* max_tokens were drawn */
  FLOTILLA_END_TOKEN = 1, /* one of end_tokens was drawn; it is reported and part of the sequence */
  FLOTILLA_END_CALLBACK = 2,
  FLOTILLA_END_CONTEXT = 3 /* the sequence is as long as the model's context */
} flotilla_end;

/* Draws up to max_tokens tokens for one sequence, which must not be empty, and appends each. on_token may be null, and
 * so may `end`. On an error, FLOTILLA_RESOURCE_EXHAUSTED among them, the tokens that were reported stay in the
 * sequence. */
flotilla_status flotilla_generate(flotilla_engine* engine, flotilla_sequence sequence,
                                  const flotilla_sampling* sampling, int32_t max_tokens,
                                  const flotilla_token* end_tokens, size_t end_token_count, flotilla_on_token on_token,
                                  void* user, flotilla_end* end);

/* Appends tokens to a sequence that is not empty and writes to logprobs[i] the logprob of tokens[i] after all before
 * it; minus infinity where top-k or top-p cut it off. sampling may be null: temperature 1, everything allowed. Equal to
 * what flotilla_sample reported for the same tokens, bit for bit. */
flotilla_status flotilla_score(flotilla_engine* engine, flotilla_sequence sequence, const flotilla_token* tokens,
                               size_t count, const flotilla_sampling* sampling, float* logprobs);

#ifdef __cplusplus
}
#endif

#endif
