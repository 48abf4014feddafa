#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "engine/engine.h"
#include "model/tokenizer.h"
#include "serve/generation.h"

namespace flotilla {

struct SchedulerLimits {
  std::int32_t sequences = 64;      // computed at a time
  std::int64_t queue = 128;         // requests that wait for their first token
  std::int32_t rows_per_call = 64;  // tokens in one forward pass: a long prompt shares it with the others' next tokens
};

struct SchedulerCounts {
  std::int64_t queued = 0;            // requests of which nothing has begun
  std::int64_t running = 0;           // requests of which something has
  std::int64_t active_sequences = 0;  // with KV
  std::int64_t tokens_generated = 0;  // since creation, as the rest
  std::int64_t prompt_tokens = 0;     // of requests accepted
  std::int64_t preemptions = 0;
};

// Continuous batching: decides which sequences are in the next forward pass, and turns its results into events.
// Requests join and leave between passes. Choices of one prompt share its KV. Where the pool runs out, the youngest
// sequence gives its KV back, waits, and is computed again later, with the same tokens: what a request gets never
// depends on the others. Pure but for the engine: time is an argument. One thread.
class Scheduler {
 public:
  // Borrows both. The engine has its weights and no open sequences.
  Scheduler(Engine& engine, const Tokenizer& tokenizer, SchedulerLimits limits);
  ~Scheduler();
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  // Prompt and answer of one choice, in tokens, that can be served at most: the model's context, or less where the KV
  // pool is smaller.
  std::int32_t context() const;

  // Puts a request in the queue; `id` is the caller's and not in use. Refused, nothing follows: invalid_argument for
  // what can never be computed, resource_exhausted when the queue is full.
  Status submit(RequestId id, GenerationRequest request, std::chrono::nanoseconds now);
  // The request ends with this error, now. Ignored for one that has ended.
  void end(RequestId id, Status why);
  void end_all(const Status& why);

  bool idle() const { return requests_.empty(); }
  // One forward pass over what fits. Returns with nothing done when idle.
  void step(std::chrono::nanoseconds now);
  // What happened since the last call.
  std::vector<GenerationEvent> take_events();

  SchedulerCounts counts() const;

 private:
  struct Choice;
  struct Request;

  std::int32_t waiting(const Choice& choice) const;
  bool prompt_pending(const Choice& choice) const;
  bool fits(std::int64_t blocks) const;
  void admit();
  void prompt_done(Choice& leader);
  void compute(const std::vector<Choice*>& choices);
  void take(Choice& choice, std::span<const ReadoutResult> results);
  void take_token(Choice& choice, const ReadoutResult& result);
  void finish(Choice& choice, GenerationEvent event);
  void preempt_youngest();
  void close(Choice& choice);

  Engine& engine_;
  const Tokenizer& tokenizer_;
  const SchedulerLimits limits_;
  std::map<RequestId, std::unique_ptr<Request>> requests_;
  std::vector<Choice*> active_;  // with a sequence
  std::deque<Choice*> pending_;  // without; the first is the next to get one
  std::vector<GenerationEvent> events_;
  std::size_t first_row_ = 0;  // who gets the first row of the next pass
  SchedulerCounts counts_;
};

}  // namespace flotilla
