#pragma once

#include <string>
#include <string_view>

namespace flotilla {

inline constexpr std::string_view kSearchClose = "</search>";
inline constexpr std::string_view kAnswerClose = "</answer>";

// What the model did in one turn.
struct DictionaryTurn {
  enum class Kind { kNone, kSearch, kAnswer };
  Kind kind = Kind::kNone;
  std::string text;  // what stands between the tags, without the white space around it
};

// Reads the model's own text of one turn. The first closing tag decides; what follows it is ignored. The action's text
// begins at the last opening tag of that kind before it, so that a tag left open swallows nothing. A closing tag
// without an opening one, and a text without closing tags, is no action.
DictionaryTurn read_dictionary_turn(std::string_view text);

}  // namespace flotilla
