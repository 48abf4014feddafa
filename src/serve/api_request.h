#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "model/tokenizer.h"
#include "serve/api_error.h"
#include "serve/generation.h"

namespace flotilla {

enum class ApiKind { kChat, kCompletion };

// What a request is checked against. Borrowed parts outlive it.
struct ServedModel {
  std::string name;
  std::string fingerprint;  // names the weights and the arithmetic: equal ones give equal answers to equal seeds
  const Tokenizer* tokenizer = nullptr;
  std::int32_t vocabulary = 0;
  std::int32_t context = 0;  // prompt and answer
};

// A request of either kind, checked, in tokens.
struct ApiRequest {
  ApiKind kind = ApiKind::kChat;
  GenerationRequest generation = {};
  bool stream = false;
  bool include_usage = false;  // in a stream
  bool logprobs = false;
  bool echo = false;  // the text begins with the prompt
};

inline constexpr std::int32_t kApiChoicesMax = 128;  // in one request
inline constexpr std::size_t kApiStopBytesMax = 1000;
// Logprobs that are put together at once: in a whole answer, or in the prompts' part of a stream. About 20 MB of JSON;
// 20 alternatives of all tokens of a context of 8192 fit.
inline constexpr std::int64_t kApiLogprobsMax = 1 << 18;

// Reads the body of POST /v1/chat/completions or /v1/completions. `fresh_seed` is for a request that names none. Every
// field that could change the answer is either done as it says or refused by name; unknown fields are refused.
std::variant<ApiRequest, ApiError> parse_api_request(ApiKind kind, std::string_view body, const ServedModel& model,
                                                     std::uint64_t fresh_seed);

}  // namespace flotilla
