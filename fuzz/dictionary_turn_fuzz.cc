#include <cstddef>
#include <cstdint>

#include "base/bytes.h"
#include "env/dictionary_turn.h"

// An action's text is a piece of the turn and holds no tag that would close it.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace flotilla;
  const std::string_view text = as_text({data, size});
  const DictionaryTurn turn = read_dictionary_turn(text);
  FLOTILLA_CHECK(text.find(turn.text) != std::string_view::npos);
  FLOTILLA_CHECK(turn.text.find(kSearchClose) == std::string::npos &&
                 turn.text.find(kAnswerClose) == std::string::npos);
  if (turn.kind == DictionaryTurn::Kind::kNone) FLOTILLA_CHECK(turn.text.empty());
  return 0;
}
