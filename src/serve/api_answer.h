#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "model/tokenizer.h"
#include "serve/api_request.h"

namespace flotilla {

// The event in pieces that say the same one after the other, each with at most so many logprobs (at least those of one
// token) of a prompt: what a whole prompt's scores take to become JSON can be shared out among other work.
std::vector<GenerationEvent> in_pieces(GenerationEvent event, std::size_t logprobs_max);

// Turns the events of one request into the API's JSON: chunks of a stream, or one object at the end. One thread.
class ApiAnswer {
 public:
  // `id` without its prefix; `created` in seconds since 1970. Borrows the model.
  ApiAnswer(ApiRequest request, const ServedModel& model, std::string id, std::int64_t created);
  ~ApiAnswer();
  ApiAnswer(const ApiAnswer&) = delete;
  ApiAnswer& operator=(const ApiAnswer&) = delete;

  // What the stream says of an event: server-sent events, possibly none. An error ends it; "[DONE]" follows a good end.
  std::string chunks(const GenerationEvent& event);

  // Keeps an event, its logprobs as JSON; and, after all of them, the whole answer, which only joins what is there.
  void add(const GenerationEvent& event);
  std::string whole(const GenerationUsage& usage) const;

 private:
  struct ChoiceState;
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace flotilla
