#include <cstddef>
#include <cstdint>
#include <string>

#include "base/bytes.h"
#include "model/bpe.h"
#include "model/nfc.h"
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

// Encoding loses nothing but the form of a text that is normalized (whose whole tokens all begin with "<|", so that a
// text without them is one piece), and decoding token by token gives what decoding at once gives.
void check(const Tokenizer& tokenizer, std::string_view text) {
  const bool normalizes = tokenizer.spec().pre_tokenizer == "qwen2";
  const std::string normal = normalizes ? to_nfc(text) : std::string(text);
  FLOTILLA_CHECK(!normalizes || to_nfc(normal) == normal);
  for (const bool parse_special : {false, true}) {
    const std::vector<TokenId> ids = tokenizer.encode(text, parse_special);
    if (!normalizes || text.find("<|") == std::string_view::npos) {
      FLOTILLA_CHECK(tokenizer.decode(ids, true) == normal);
    }
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
  static const auto qwen2 = make_tokenizer("qwen2");
  check(*gpt2, as_text({data, size}));
  check(*qwen2, as_text({data, size}));
  return 0;
}
