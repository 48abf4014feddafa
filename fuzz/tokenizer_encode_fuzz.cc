#include <cstddef>
#include <cstdint>
#include <string>

#include "base/bytes.h"
#include "model/bpe.h"
#include "model/tokenizer.h"

namespace flotilla {
namespace {

std::shared_ptr<const Tokenizer> make_tokenizer(const char* pre_tokenizer) {
  TokenizerSpec spec;
  spec.pre_tokenizer = pre_tokenizer;
  for (int b = 0; b < 256; ++b) spec.tokens.push_back(bytes_to_alphabet(std::string(1, static_cast<char>(b))));
  spec.merges = {{"a", "a"}, {"aa", "aa"}, {"b", "a"}, {"Ġ", "a"}, {"Ċ", "Ċ"}, {"Ã", "©"}, {"aa", "b"}};
  for (const auto& [left, right] : spec.merges) spec.tokens.push_back(left + right);
  spec.special = {static_cast<TokenId>(spec.tokens.size())};
  spec.tokens.push_back("<|s|>");
  spec.added = {static_cast<TokenId>(spec.tokens.size())};
  spec.tokens.push_back("<|");
  return Tokenizer::create(spec).value();
}

// Encoding loses nothing, and decoding token by token gives what decoding at once gives.
void check(const Tokenizer& tokenizer, std::string_view text) {
  for (const bool parse_special : {false, true}) {
    const std::vector<TokenId> ids = tokenizer.encode(text, parse_special);
    FLOTILLA_CHECK(tokenizer.decode(ids, true) == text);
    StreamingDecoder decoder(tokenizer);
    std::string streamed;
    for (const TokenId id : ids) streamed += decoder.push(id);
    FLOTILLA_CHECK(streamed + decoder.finish() == tokenizer.decode(ids));
  }
}

}  // namespace
}  // namespace flotilla

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace flotilla;
  static const auto smollm = make_tokenizer("smollm");
  static const auto gpt2 = make_tokenizer("gpt-2");
  check(*smollm, as_text({data, size}));
  check(*gpt2, as_text({data, size}));
  return 0;
}
