#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "base/bytes.h"
#include "engine/sampler.h"
#include "model/test_models.h"
#include "serve/api_request.h"

// Whatever is accepted is a request that can be computed.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace flotilla;
  static const auto tokenizer = Tokenizer::create(tiny_tokenizer_spec()).value();
  static const ServedModel model{.name = "m",
                                 .fingerprint = "f",
                                 .tokenizer = tokenizer.get(),
                                 .vocabulary = tokenizer->vocabulary(),
                                 .context = 128};
  for (const ApiKind kind : {ApiKind::kChat, ApiKind::kCompletion}) {
    const auto parsed = parse_api_request(kind, as_text({data, size}), model, 1);
    if (const auto* error = std::get_if<ApiError>(&parsed)) {
      FLOTILLA_CHECK(error->http_status >= 400 && !error->message.empty() && !error->to_json().empty());
      continue;
    }
    const GenerationRequest& request = std::get<ApiRequest>(parsed).generation;
    FLOTILLA_CHECK(check_sampling(request.sampling).ok() && request.choices >= 1 && !request.prompts.empty());
    for (const auto& prompt : request.prompts) {
      FLOTILLA_CHECK(!prompt.empty() && std::ssize(prompt) + request.max_tokens <= model.context);
      for (const TokenId token : prompt) FLOTILLA_CHECK(token >= 0 && token < model.vocabulary);
    }
    for (const std::string& stop : request.stop_strings) FLOTILLA_CHECK(!stop.empty());
  }
  return 0;
}
