#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "model/tokenizer.h"
#include "serve/api_request.h"

namespace flotilla {

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

  // Keeps an event; and, after all of them, the whole answer.
  void add(const GenerationEvent& event);
  std::string whole(const GenerationUsage& usage) const;

 private:
  struct ChoiceState;
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace flotilla
