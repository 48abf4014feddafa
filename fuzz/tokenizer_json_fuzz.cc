#include <cstddef>
#include <cstdint>

#include "base/bytes.h"
#include "model/tokenizer.h"

// Whatever is accepted is written as a tokenizer.json of the same tokenizer, and encodes and decodes.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace flotilla;
  const auto tokenizer = Tokenizer::from_json(as_text({data, size}));
  if (!tokenizer.ok()) return 0;
  const auto again = Tokenizer::from_json((*tokenizer)->to_json());
  FLOTILLA_CHECK(again.ok() && (*again)->digest() == (*tokenizer)->digest());
  const std::string_view text = as_text({data, size});
  FLOTILLA_CHECK((*tokenizer)->encode(text, true) == (*again)->encode(text, true));
  return 0;
}
